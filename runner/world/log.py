"""Warnings of runs: a program's handlers of the logger "meshrun" get them; a command prints them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from meshrun.runner.errors import tell

LOGGER = logging.getLogger("meshrun")


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(f"warning: {record.getMessage()}")


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Print warnings as a command does, instead of leaving them to the handlers of a program."""
    handler, propagated = _Told(logging.WARNING), LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = propagated

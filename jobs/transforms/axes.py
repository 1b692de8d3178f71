"""Numbers of axes on the command line."""

from __future__ import annotations

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option


def parse_axes(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of the option axes; None if it is not given. UserError if they do not parse."""
    if text is None:
        return None
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UserError(
            f"{option('axes')} does not parse", got=repr(text), expected="numbers such as 0,2 or -1"
        ) from None

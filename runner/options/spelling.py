"""How the caller of a run writes an option: `--keep-it 3` in a command, `keep_it=3` in Python.

Whoever names an option in a message, a warning or a help text writes `option("keep_it", 3)`. A process has
one caller: `python_caller` makes it a Python program while a call runs, and `renamed` gives other names to
options whose names a job's own parameters have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Caller:
    """is_python: a Python program rather than a command. names: of options that this job calls otherwise."""

    is_python: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


_callers = [_Caller()]  # the last one is the present one


def option(name: str, value: object = None) -> str:
    """Return an option as the caller writes it.

    Parameters
    ----------
    name: the option's name in the table, such as "keep_it".
    value: True or False of a flag; a number; or a text, such as "N" or "full". None: the name alone.

    Examples
    --------
    >>> option("chunk_bytes"), option("depth", 1), option("resume", True), option("overlap", False)
    ('--chunk-bytes', '--depth 1', '--resume', '--no-overlap')
    >>> with python_caller():
    ...     option("chunk_bytes"), option("depth", 1), option("resume", True), option("verify", "full")
    ('chunk_bytes', 'depth=1', 'resume=True', "verify='full'")
    """
    caller = _callers[-1]
    called = caller.names.get(name, name)
    if caller.is_python:
        return called if value is None else f"{called}={value!r}"
    flag = f"{'no-' if value is False else ''}{called}".replace("_", "-")
    return f"--{flag}" if value is None or isinstance(value, bool) else f"--{flag} {value}"


@contextmanager
def python_caller(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Have options written as keywords. names: as for `renamed`."""
    with _called(_Caller(True, names or {})):
        yield


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Have options written by other names, such as run_depth for depth, by the caller that there is."""
    with _called(_Caller(_callers[-1].is_python, names)):
        yield


@contextmanager
def _called(caller: _Caller) -> Iterator[None]:
    _callers.append(caller)
    try:
        yield
    finally:
        _callers.remove(caller)

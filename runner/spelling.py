"""How the caller of a run writes an option: `--keep-it 3` in a command, `keep_it=3` in Python.

A message, a warning or a help text that names an option contains `option("keep_it", 3)`, which is evaluated
when the text is made. A process has one caller: `python_caller` makes it a Python program while a call runs,
and `renamed` gives other names to options whose names a job's own parameters have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

# Keywords in Python of options that a command has under a shorter name as well.
KEYWORDS = {"shape": "input_shape", "dtype": "input_dtype", "order": "input_order"}


@dataclass(eq=False)
class _Caller:
    """is_python: a Python program rather than a command. names: of options that this job calls otherwise."""

    is_python: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


_callers = [_Caller()]  # the last one is the present one


def option(name: str, value: object = None, *, metavar: str | None = None) -> str:
    """Return an option as the caller writes it.

    Parameters
    ----------
    name: the option's name in the table, such as "keep_it".
    value: True or False of a flag; a number or a text. None: the name alone.
    metavar: what stands for a value that the reader chooses, such as "N".

    Examples
    --------
    >>> option("chunk_bytes"), option("depth", 1), option("resume", True), option("overlap", False)
    ('--chunk-bytes', '--depth 1', '--resume', '--no-overlap')
    >>> option("steps", metavar="N"), option("kernel", "1 2 1")
    ('--steps N', '--kernel "1 2 1"')
    >>> with python_caller():
    ...     option("chunk_bytes"), option("depth", 1), option("resume", True), option("verify", "full")
    ('chunk_bytes', 'depth=1', 'resume=True', "verify='full'")
    >>> with python_caller():
    ...     option("steps", metavar="N"), option("shape")
    ('steps=N', 'input_shape')
    """
    caller = _callers[-1]
    if not caller.is_python and name == "ranks" and value is not None:
        return f"-n {value}"  # of meshrun itself, which no job renames
    if not caller.is_python:
        return command_option(caller.names.get(name, name), value, metavar=metavar)
    keyword = KEYWORDS.get(name, name)
    called = caller.names.get(name) or caller.names.get(keyword, keyword)
    if value is None:
        return called if metavar is None else f"{called}={metavar}"
    return f"{called}={value:g}" if isinstance(value, float) else f"{called}={value!r}"


def command_option(name: str, value: object = None, *, metavar: str | None = None) -> str:
    """Return an option that only commands have, such as --stall-timeout, whoever the caller is.

    Parameters are those of `option`.
    """
    flag = f"--{'no-' if value is False else ''}{name}".replace("_", "-")
    if value is None or isinstance(value, bool):
        return flag if metavar is None else f"{flag} {metavar}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f'{flag} "{text}"' if {" ", ";"} & {*text} else f"{flag} {text}"


def joined(*options: str) -> str:
    """Return options that are given together, each as `option` spells it."""
    return (", " if _callers[-1].is_python else " ").join(options)


def run_command(words: str) -> str | None:
    """Return a hint to type `meshrun run` with these words; None in Python, where nobody types commands."""
    return None if _callers[-1].is_python else f"meshrun run {words}"


@contextmanager
def python_caller(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Have options written as keywords, in a `with` block or, as a decorator, in a function for programs.

    names: as for `renamed`; None: as they are.
    """
    with _called(_Caller(True, _callers[-1].names if names is None else names)):
        yield


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Have options written by other names, such as run_depth for depth, as the caller writes them."""
    with _called(_Caller(_callers[-1].is_python, names)):
        yield


@contextmanager
def _called(caller: _Caller) -> Iterator[None]:
    _callers.append(caller)
    try:
        yield
    finally:
        _callers.remove(caller)

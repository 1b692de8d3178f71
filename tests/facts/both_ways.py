"""Run a function as Python runs it, and converted, and compare all that can be seen."""

from __future__ import annotations

import copy
import itertools
import linecache
import re
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.compiler.control.convert import convert
from meshrun.runner.compiler.control.plain import CONTROL, PlainControl

NUMBERS = itertools.count()


@dataclass(frozen=True)
class Seen:
    """What a call did. log: its side effects, in order."""

    result: str
    error: tuple[str, str, int] | None
    log: tuple[str, ...]


def compiled(text: str, name: str = "f", **given: Any) -> Any:
    """Return what a text defines by a name, with its lines known as those of a notebook's cell are."""
    file = f"<cell {next(NUMBERS)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    space: dict[str, Any] = {"__name__": "user", **given}
    exec(compile(text, file, "exec"), space)
    return space[name]


def converted(function: Callable[..., Any]) -> Any:
    """Return a function whose loops and conditions are PlainControl's. It shares globals and variables."""
    assert isinstance(function, types.FunctionType)
    code = convert(function)
    assert code is not None, f"{function.__qualname__} is not converted"
    original = function.__code__
    assert code.co_freevars == original.co_freevars
    assert code.co_varnames[: code.co_argcount] == original.co_varnames[: original.co_argcount]
    for name in ("co_name", "co_filename", "co_firstlineno", "co_argcount", "co_kwonlyargcount"):
        assert getattr(code, name) == getattr(original, name)
    function.__globals__[CONTROL] = PlainControl()
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def seen(function: Callable[..., Any], arguments: Sequence[Any], log: list[str]) -> Seen:
    """Call a function and return what can be seen of the call."""
    log.clear()
    error, result = None, ""
    try:
        result = repr(function(*copy.deepcopy(arguments)))
    except Exception as reason:
        file = function.__code__.co_filename
        lines = [each.lineno for each in traceback.extract_tb(reason.__traceback__) if each.filename == file]
        error = type(reason).__name__, _without_addresses(str(reason)), lines[-1] or 0
    return Seen(_without_addresses(result), error, tuple(map(_without_addresses, log)))


def _without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x", text)


def functions_in(value: Any, seen: set[int] | None = None) -> Iterator[types.FunctionType]:
    """Yield a text's functions: those in its globals, of its classes, and in variables around functions."""
    seen = set() if seen is None else seen
    if id(value) in seen or getattr(value, "__module__", "user") != "user":
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        yield value
        around = [each.cell_contents for each in value.__closure__ or () if each != types.CellType()]
        for each in (value.__globals__, *around):
            yield from functions_in(each, seen)
    elif isinstance(value, (dict, type)):
        for each in dict(vars(value) if isinstance(value, type) else value).values():
            if isinstance(each, (types.FunctionType, type)):
                yield from functions_in(each, seen)


def check_same(text: str, *calls: Sequence[Any], name: str = "f") -> None:
    """Check that a text's function does the same, for each call's arguments, if all are converted."""
    log: list[str] = []
    outcomes = []
    for is_converted in (False, True):
        function = compiled(text, name, log=lambda *values: log.append(repr(values)))
        if is_converted:
            codes = {each: convert(each) for each in functions_in(function)}
            assert any(codes.values())
            for each, code in codes.items():
                each.__code__ = code or each.__code__
            function.__globals__[CONTROL] = PlainControl()
        outcomes.append([seen(function, arguments, log) for arguments in calls or [()]])
    assert outcomes[1] == outcomes[0]

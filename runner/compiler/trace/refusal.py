"""Why a function cannot be traced, with the line of the user's file."""

from __future__ import annotations

import dis
import inspect
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshrun.runner.region import Shape

READ_ONLY = (
    "writes to an array from outside of the function, which would keep it from one call to the next",
    "a copy of it in the function, or an input that the function returns",
)


class NotTraceable(BaseException):
    """Why a function cannot become one kernel. `except Exception` of the function does not catch it.

    line: of the user's file; 0 if unknown. hint: what to write instead. shorter: if that is the reason, by
    how many cells the result is shorter than the own cells, per grid axis; negative if it is longer. whole:
    if that is the reason, what takes all cells along grid axes, or certain ones, and these axes. tape: what
    had been computed of the step until then (`timed.StepTape`). nests: whether the function has coarse grids
    and raised an error that other lengths of its arrays may prevent.
    """

    def __init__(
        self,
        reason: str,
        hint: str | None = None,
        shorter: Shape = (),
        whole: tuple[str, tuple[int, ...]] = ("", ()),
    ) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.shorter, self.whole, self.line = reason, hint, shorter, whole, 0
        self.tape: Any = None
        self.nests = False


@contextmanager
def refused_with_line(function: Callable[..., Any], tape: Any = None) -> Iterator[None]:
    """Raise NotTraceable, with its line in the user's file, for what a traced call of `function` raises.

    tape: of the call.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except NotTraceable as reason:
        returns = line_of_return(function) if reason.reason.startswith("returns") else 0
        reason.line = reason.line or raised_at(reason, function) or returns
        reason.tape = tape
        raise
    except RecursionError as reason:
        deep = NotTraceable("calls itself too deep, or computes too long an expression", "a loop")
        deep.line = raised_at(reason, function)
        raise deep from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as reason:  # a user's function may raise anything
        failure = refusal_of(reason)
        failure.line = raised_at(reason, function)
        raise failure from reason


def refusal_of(reason: BaseException) -> NotTraceable:
    """Return the refusal of a function that raises an error while it is traced."""
    if isinstance(reason, ValueError) and "read-only" in str(reason):
        return NotTraceable(*READ_ONLY)
    # NumPy and C know a stand-in by the name of its class.
    said = re.sub(r"'(Whole|Scalar|Traced|Picked)'", "an array", str(reason))
    return NotTraceable(f"raises {type(reason).__name__}{': ' if said else ''}{said}")


def raised_at(failure: BaseException, function: Callable[..., Any]) -> int:
    """Return the line of the user's file that raised `failure`; 0 if unknown."""
    file, line = file_of(function), 0
    trail = failure.__traceback__
    while trail is not None:
        if trail.tb_frame.f_code.co_filename == file:
            line = trail.tb_lineno
        trail = trail.tb_next
    return line


def line_of_return(function: Callable[..., Any]) -> int:
    """Return the line of the only place where a function ends; 0 if there are several, or none is known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, types.CodeType):
        return 0
    line, lines = 0, set()
    for one in dis.get_instructions(code):
        line = one.starts_line or line if isinstance(one.starts_line, int) else line
        if one.opname.startswith("RETURN_") and one.opname != "RETURN_GENERATOR":
            lines.add(line)
    return lines.pop() if len(lines) == 1 else 0


def file_of(function: Callable[..., Any]) -> str:
    """Return the source file of a function; "" if it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if isinstance(code, types.CodeType) else ""

"""Steps that fail on every rank when they fail on one, so that nobody waits for a rank that has left.

Any error is raised on all ranks as it is on the one that met it, of the same type: what a caller expects is
caught on all. One that does not travel (it does not pickle) becomes a RunError with the same words, on all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from runner.comm import Control
from runner.errors import MeshrunError, RunError, describe, met_by_all, traceback_of

Value = TypeVar("Value")

# What pickling can raise: of pickle itself, and of classes with a say in it.
UNPICKLABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, NameError, OSError,
    TypeError, ValueError, pickle.PickleError,
)  # fmt: skip


@dataclass(frozen=True)
class Failed:
    """What one rank has met, as it goes to the others, and what does not travel with an error.

    sentence: with the place, of an error that is not ours. trace: for --debug.
    """

    failure: BaseException
    sentence: str = ""
    trace: str = ""

    def again(self) -> BaseException:
        """The error to raise on this rank."""
        return met_by_all(self.failure, self.sentence, self.trace)


def once(control: Control, step: Callable[[], Value], where: str = "") -> Value:
    """Call `step` on rank 0 only; its value, or its error, on every rank. Collective.

    where: of this rank, for the sentence of an error that is not ours.
    """
    mine = _attempt(control, step, where) if control.rank == 0 else (None, None)
    try:
        value, failed = control.broadcast(mine)
    except UNPICKLABLE as reason:
        if control.rank:
            raise
        # The value does not pickle: nothing has been sent, and the others still wait for it.
        kind = type(mine[0]).__name__
        failure = RunError("rank 0's value cannot be sent to the other ranks", got=f"{kind}: {reason}")
        value, failed = control.broadcast((None, Failed(failure)))
    if failed is not None:
        raise failed.again()
    result: Value = value
    return result


def together(control: Control, step: Callable[[], Value], where: str = "", *, named: bool = False) -> Value:
    """Call `step` on every rank; if it fails on any, the first such error is raised on all. Collective.

    where: as for `once`; named: for our own errors too.
    """
    value, failed = _attempt(control, step, where, named)
    _raise_first(control.allgather(failed))
    return value


def gather(control: Control, step: Callable[[], Value], where: str) -> list[Value]:
    """`together`, named; every rank's value, in rank order."""
    everyone = control.allgather(_attempt(control, step, where, named=True))
    _raise_first([failed for _, failed in everyone])
    return [value for value, _ in everyone]


def _attempt(
    control: Control, step: Callable[[], Value], where: str, named: bool = False
) -> tuple[Value | Any, Failed | None]:
    try:
        return step(), None
    except MeshrunError as failure:
        if named:
            failure.what = f"{where} {failure.what}"
        return None, Failed(failure, trace=traceback_of(failure))
    except BaseException as failure:
        if control.size == 1 or isinstance(failure, KeyboardInterrupt):
            raise
        sentence = f"{where} {describe(failure)}".strip()
        return None, Failed(
            failure if _travels(failure) else RunError(sentence), sentence, traceback_of(failure)
        )


def _travels(failure: BaseException) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(failure))) is type(failure)
    except (*UNPICKLABLE, RuntimeError):
        return False


def _raise_first(outcomes: list[Failed | None]) -> None:
    for failed in outcomes:
        if failed is not None:
            raise failed.again()

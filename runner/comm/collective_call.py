"""Calls that raise on every rank if they raise on one, so that no rank waits forever for a failed one.

An error is raised on all ranks with the type it has on the rank where it occurred, so that a caller that
expects it catches it on all. An error that cannot be pickled becomes a RunError with the same message on all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from meshrun.runner.comm.api import Control
from meshrun.runner.errors import MeshrunError, RunError, describe, met_by_all, traceback_of

Value = TypeVar("Value")
Own = TypeVar("Own")

# What pickling can raise: pickle's own errors, and those of classes that define how they are pickled.
UNPICKLABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, NameError, OSError,
    TypeError, ValueError, pickle.PickleError,
)  # fmt: skip


@dataclass(frozen=True)
class RemoteError:
    """An error on one rank, as it is sent to the others.

    sentence: the message, with the rank, of an error that is not a MeshrunError. trace: for debug; pickling
    an exception drops its traceback.
    """

    error: BaseException
    sentence: str = ""
    trace: str = ""

    def local_error(self) -> BaseException:
        """The error to raise on this rank."""
        return met_by_all(self.error, self.sentence, self.trace)


def on_root(control: Control, function: Callable[[], Value], where: object = "") -> Value:
    """Call `function` on rank 0 only; its value, or its error, on every rank. Collective.

    where: names this rank in the message of an error that is not a MeshrunError.
    """
    own = _attempt(control, function, where) if control.rank == 0 else (None, None)
    try:
        value, failed = control.broadcast(own)
    except UNPICKLABLE as reason:
        if control.rank:
            raise
        # The value cannot be pickled: nothing has been sent, and the others are still waiting.
        kind = type(own[0]).__name__
        error = RunError("rank 0's value cannot be sent to the other ranks", got=f"{kind}: {reason}")
        value, failed = control.broadcast((None, RemoteError(error)))
    if failed is not None:
        raise failed.local_error()
    result: Value = value
    return result


def collective_call(
    control: Control, function: Callable[[], Value], where: object = "", *, names_rank: bool = False
) -> Value:
    """Call `function` on every rank; if any fails, raise the first one's error on all. Collective.

    where: as for `on_root`; names_rank: in the message of a MeshrunError too.
    """
    value, failed = _attempt(control, function, where, names_rank)
    _raise_first(control.allgather(failed))
    return value


def gather_calls(
    control: Control, function: Callable[[], Value], where: object, *, names_rank: bool = False
) -> list[Value]:
    """Return every rank's value, in rank order, on every rank; else like `collective_call`. Collective."""
    outcomes = control.allgather(_attempt(control, function, where, names_rank))
    _raise_first([failed for _, failed in outcomes])
    return [value for value, _ in outcomes]


def call_and_tell(
    control: Control, function: Callable[[], tuple[Own, Value]], where: object
) -> tuple[Own, list[Value]]:
    """Call `function` on every rank; return what it returns first here, and what it returns second of every
    rank, in rank order. Collective, with the errors of `collective_call`."""
    found, failed = _attempt(control, function, where)
    outcomes = control.allgather((None if found is None else found[1], failed))
    _raise_first([failed for _, failed in outcomes])
    assert found is not None
    return found[0], [value for value, _ in outcomes]


def _attempt(
    control: Control, function: Callable[[], Value], where: object, names_rank: bool = False
) -> tuple[Value | Any, RemoteError | None]:
    try:
        return function(), None
    except MeshrunError as error:
        if names_rank:
            error.what = f"[{where}] {error.what}"
        return None, RemoteError(error, trace=traceback_of(error))
    except BaseException as error:
        if control.size == 1 or isinstance(error, KeyboardInterrupt):
            raise
        sentence = f"[{where}] {describe(error)}" if where else describe(error)
        sent = error if _pickles(error) else RunError(sentence)
        return None, RemoteError(sent, sentence, traceback_of(error))


def _pickles(error: BaseException) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except (*UNPICKLABLE, RuntimeError):
        return False


def _raise_first(outcomes: list[RemoteError | None]) -> None:
    for failed in outcomes:
        if failed is not None:
            raise failed.local_error()

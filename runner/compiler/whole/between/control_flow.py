"""Loops and conditions of a function while it is traced.

A loop over a range, or one whose condition is a value of the program, is traced once: a first time to learn
what an iteration changes, and again with stand-ins for that state. What an iteration leaves must be like what
it finds: views of the same arrays, of the same shapes and dtypes. Where the first iteration differs from the
others, as it makes an array or turns a Python number into a value, it is traced by itself.

A branch on a value becomes a choice of both results per cell where that takes a few operations, or else a
loop of at most one iteration.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from meshrun.runner.compiler.control.plain import UNBOUND, LocalState, PlainControl, called
from meshrun.runner.compiler.trace.array import UNKNOWN
from meshrun.runner.compiler.trace.graph import Node
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.timed import Timed
from meshrun.runner.compiler.whole.array import Tracing, Whole
from meshrun.runner.compiler.whole.between.branches import choose
from meshrun.runner.compiler.whole.between.loop_recording import record_loop
from meshrun.runner.compiler.whole.between.loop_results import MOST_COUNTED
from meshrun.runner.compiler.whole.between.recorded_loop import RecordedLoop
from meshrun.runner.compiler.whole.between.traced_state import NotAlike, StateTracer, is_traced
from meshrun.runner.compiler.whole.graph import ValueCheck

FEW = 4  # iterations that are traced one by one


class TracedControl(PlainControl):
    """Loops and conditions of one call of a function. recorder: of the call. dtypes: of the inputs."""

    def __init__(self, recorder: Tracing, dtypes: Iterable[np.dtype[Any]]) -> None:
        self._recorder, self._tracer = recorder, StateTracer(recorder, dtypes)

    # Logical operators

    def truth(self, value: Any) -> Any:
        if not is_traced(value):
            return super().truth(value)
        return value if is_truth(value) or np.ndim(value) else value != 0

    def both(self, first: Any, second: Callable[[], Any]) -> Any:
        if not is_traced(first):
            return super().both(first, second)
        other = called(second)
        if not (is_truth(first) and is_truth(other)):
            return self.choice(first, lambda: other, lambda: first)
        return np.logical_and(first, other) if is_traced(other) else (first if other else False)

    def either(self, first: Any, second: Callable[[], Any]) -> Any:
        if not is_traced(first):
            return super().either(first, second)
        other = called(second)
        if not (is_truth(first) and is_truth(other)):
            return self.choice(first, lambda: first, lambda: other)
        return np.logical_or(first, other) if is_traced(other) else (True if other else first)

    def negated(self, value: Any) -> Any:
        if isinstance(value, Timed):
            return self._recorder.tape.call(self._recorder.line(), operator.not_, value)
        return np.logical_not(value) if is_traced(value) else super().negated(value)

    def choice(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        if not is_traced(test):
            return super().choice(test, then, otherwise)
        result = UNBOUND

        def taking(function: Callable[[], Any]) -> Callable[[], None]:
            def take() -> None:
                nonlocal result
                result = called(function)

            return take

        self.branch(test, taking(then), taking(otherwise), LocalState(lambda: (result,), ("result",)))
        return result

    def extreme(
        self, better: Callable[[Any, Any], Any], function: Callable[..., Any], *values: Any, **options: Any
    ) -> Any:
        items = values[0] if len(values) == 1 and type(values[0]) in (list, tuple) else values
        if options or not any(isinstance(item, Whole) and is_traced(item) for item in items):
            return super().extreme(better, function, *values, **options)
        return functools.reduce(
            lambda best, item: self.choice(better(item, best), lambda: item, lambda: best), items
        )

    def check(self, value: Any, message: Callable[[], Any] | None) -> None:
        if not is_traced(value) or isinstance(value, Timed):
            super().check(value, message)
            return
        condition = self._tracer.condition(value)
        if condition.op == "constant":
            super().check(condition.value, message)
            return
        said = "" if message is None else _said(message)
        self._check(condition, f"fails an assertion{said}")

    def fail_if(self, value: Any, error: Callable[[], Any]) -> None:
        if not is_traced(value):
            super().fail_if(value, error)
            return
        condition = self._tracer.condition(self.negated(value))
        if condition.op == "constant":
            super().fail_if(not condition.value, error)
            return
        what = "raises an error"
        with suppress(NotTraceable):  # it formats a value
            raised = called(error)
            name = raised.__name__ if isinstance(raised, type) else type(raised).__name__
            what = f"raises {name}{'' if isinstance(raised, type) else _said(lambda: raised)}"
        self._check(condition, what)

    def _check(self, condition: Node, what: str) -> None:
        """Let the program fail where a condition is false. what: the function does then, from the verb on."""
        recorder = self._recorder
        count = recorder.graph.operation("cast", np.dtype(np.int64), [condition], recorder.line())
        recorder.checks.append(ValueCheck(count, what, recorder.line()))

    # Statements

    def branch(
        self, test: Any, then: Callable[[], None], otherwise: Callable[[], None] | None, state: LocalState
    ) -> None:
        if not is_traced(test):
            super().branch(test, then, otherwise, state)
            return
        line = self._tracer.line_of(then)
        condition = self._tracer.condition(test)
        if condition.op == "constant":
            super().branch(bool(condition.value), then, otherwise, state)
            return
        if choose(self._tracer, condition, then, otherwise, state):
            return
        # Each side is a loop of at most one iteration.
        graph = self._recorder.graph
        record_loop(
            self._tracer,
            RecordedLoop(-1, ("if", line), range(1), first=condition),
            state,
            lambda _: called(then),
        )
        if otherwise is not None:
            opposite = graph.operation("logical_not", condition.dtype, [condition], line)
            loop = RecordedLoop(-1, ("if", line), range(1), first=opposite)
            record_loop(self._tracer, loop, state, lambda _: called(otherwise))

    def while_loop(self, test: Callable[[], Any], body: Callable[[], None], state: LocalState) -> None:
        # Iterations whose condition is known are traced one by one.
        wanted, unrolled = called(test), 0
        while not is_traced(wanted):
            if not wanted:
                return
            called(body)
            wanted, unrolled = called(test), unrolled + 1
        first = self._tracer.condition(wanted)
        loop = RecordedLoop(-1, ("while", body.__code__.co_firstlineno), first=first, unrolled=unrolled)
        record_loop(self._tracer, loop, state, lambda _: called(body), lambda: called(test))

    def for_loop(
        self,
        iterable: Iterable[Any],
        go_on: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: LocalState,
    ) -> None:
        items: Any = iterable if isinstance(iterable, range) else list(iterable)
        for number, item in enumerate(items):
            # One or two first iterations may differ from the others, which are traced once.
            left = len(items) - number
            if isinstance(items, range) and left > FEW and number < 2:
                place = "for", body.__code__.co_firstlineno
                loop = RecordedLoop(-1, place, items[number:], unrolled=number)
                try:
                    record_loop(
                        self._tracer, loop, state, lambda item: called(body, item), go_on, unrolled=True
                    )
                    return
                except (NotAlike, NotTraceable):
                    if left > MOST_COUNTED:
                        raise
            # This one by itself.
            called(body, item)
            more = True if go_on is None else go_on()
            if is_traced(more):
                rest = items[number + 1 :]
                if len(rest):
                    self.branch(more, partial(self.for_loop, rest, go_on, body, state), None, state)
                return
            if not more:
                return


def _said(message: Callable[[], Any]) -> str:
    """Return the end of a message: nothing if it formats a value, which only the program knows."""
    with suppress(NotTraceable):
        text = str(called(message))
        if text and UNKNOWN not in text:
            return f": {text}"
    return ""


def is_truth(value: Any) -> bool:
    """Return whether a value is true or false, rather than another number."""
    sample = value.sample if isinstance(value, Timed) else value
    return isinstance(sample, (bool, np.bool_)) or (isinstance(sample, Whole) and sample.dtype == np.bool_)

"""What converted loops and conditions do with Python's own values: exactly what Python does."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from meshrun.runner.compiler.trace.refusal import NotTraceable

# Names of the functions that a converted function calls in place of its statements, as in a traceback.
STATEMENTS = ("<for>", "<while>", "<if>", "<else>", "<test>")
CONTROL = "__control__"  # the global name of the control object
OPERAND = "<operand>"  # the parameter of a function that an operand became
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda value, container: value in container,
    "not in": lambda value, container: value not in container,
}


class _Unbound:
    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND: Final = _Unbound()  # the value of a variable that has none


class LocalState:
    """The local variables that a loop or a condition reads or assigns.

    Parameters
    ----------
    cells: a function whose closure has the variables; it is never called.
    assigned: names of the variables that the statement assigns.

    Attributes
    ----------
    names: of the variables; those that the statement assigns come first.
    assigned: how many variables the statement assigns.
    """

    def __init__(self, cells: Callable[[], object], assigned: Sequence[str]) -> None:
        variables: Any = cells
        around = dict(zip(variables.__code__.co_freevars, variables.__closure__ or (), strict=True))
        self.names = (*assigned, *(name for name in around if name not in assigned))
        self.assigned = len(assigned)
        self._cells: list[types.CellType] = [around[name] for name in self.names]

    def get(self) -> tuple[Any, ...]:
        """Return the variables' values, UNBOUND for a variable that has none."""
        return tuple(map(_content, self._cells))

    def set(self, values: Sequence[Any]) -> None:
        """Assign all variables; one whose value is UNBOUND is deleted."""
        for cell, value in zip(self._cells, values, strict=True):
            if value is UNBOUND:
                del cell.cell_contents
            else:
                cell.cell_contents = value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


class PlainControl:
    """Loops, conditions and logical operators of Python's own values."""

    state = LocalState
    refusal = NotTraceable  # passes the handlers of `try` statements

    def branch(
        self, test: Any, then: Callable[[], None], otherwise: Callable[[], None] | None, state: LocalState
    ) -> None:
        """Run an `if` statement. otherwise: None if it has no `else`."""
        if test:
            called(then)
        elif otherwise is not None:
            called(otherwise)

    def while_loop(self, test: Callable[[], Any], body: Callable[[], None], state: LocalState) -> None:
        """Run a `while` statement."""
        while called(test):
            called(body)

    def for_loop(
        self,
        iterable: Iterable[Any],
        go_on: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: LocalState,
    ) -> None:
        """Run a `for` statement.

        go_on: returns whether to take another item after one is done. None: take all.
        """
        for item in iterable:
            called(body, item)
            if go_on is not None and not go_on():
                break

    def both(self, first: Any, second: Callable[[], Any]) -> Any:
        """Return `first and second()`."""
        return first and called(second)

    def either(self, first: Any, second: Callable[[], Any]) -> Any:
        """Return `first or second()`."""
        return first or called(second)

    def negated(self, value: Any) -> Any:
        """Return `not value`."""
        return not value

    def truth(self, value: Any) -> Any:
        """Return the truth of an operand in a test: Python asks an operand once, not again for the test."""
        return bool(value)

    def choice(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Return `then() if test else otherwise()`."""
        return called(then) if test else called(otherwise)

    def chain(self, first: Any, *pairs: tuple[str, Callable[[], Any]], is_test: bool = False) -> Any:
        """Return what a chain of comparisons is, such as a < b < c.

        Parameters
        ----------
        first: the first operand.
        pairs: each operator as it is written, and what returns the operand on its right.
        is_test: whether only the truth of the result matters.
        """
        (name, second), *others = pairs
        right = called(second)
        result = COMPARISONS[name](first, right)
        if is_test:
            result = self.truth(result)
        return self.both(result, lambda: self.chain(right, *others, is_test=is_test)) if others else result

    def extreme(
        self, better: Callable[[Any, Any], Any], function: Callable[..., Any], *values: Any, **options: Any
    ) -> Any:
        """Return what Python's min or max returns.

        Parameters
        ----------
        better: returns whether its first argument takes the place of its second one: < for min, > for max.
        function: computes it of Python's numbers.
        values, options: what min or max is called with.
        """
        return function(*values, **options)

    def check(self, value: Any, message: Callable[[], Any] | None) -> None:
        """Run an `assert` statement. message: None if it has none."""
        if not value:
            raise AssertionError(*([] if message is None else [called(message)]))

    def fail_if(self, value: Any, error: Callable[[], Any]) -> None:
        """Run an `if` statement whose body raises an error."""
        if value:
            raise called(error)


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function of a statement or of an operand.

    A variable that has no value is a free one there, and a local one in the user's function: raises the error
    of a local variable.
    """
    try:
        return function(*arguments)
    except NameError as reason:
        local = _of_local(reason)
        if local is None:
            raise
    raise local.with_traceback(local.__traceback__)


def _of_local(reason: NameError) -> UnboundLocalError | None:
    """Return the error of a local variable in place of that of a free one; None if it is another error."""
    last = reason.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    frame = last.tb_frame if last else None
    name = getattr(reason, "name", None) or ""
    if type(reason) is not NameError or frame is None or not _is_converted(frame.f_code):
        return None
    if name not in frame.f_code.co_freevars:
        return None
    # The function whose statements these are: is the variable its own?
    caller: types.FrameType | None = frame
    while caller is not None and (_is_converted(caller.f_code) or caller.f_code.co_filename == __file__):
        caller = caller.f_back
    if caller is None or name not in caller.f_code.co_cellvars:
        return None
    said = str(reason).replace("free variable", "local variable")
    said = re.sub(" in enclosing scope$", "", said)
    local = UnboundLocalError(said)
    local.name = name
    local.__cause__, local.__context__ = reason.__cause__, reason.__context__
    local.__suppress_context__ = reason.__suppress_context__
    return local.with_traceback(reason.__traceback__)


def _is_converted(code: types.CodeType) -> bool:
    """Return whether a code is that of a statement or an operand of a converted function."""
    return code.co_name in STATEMENTS or code.co_varnames[:1] == (OPERAND,)

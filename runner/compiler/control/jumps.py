"""Replace `break`, `continue` and `return` by flags, for the functions that loops and branches become.

What follows a statement that may set a flag runs if none is set. What follows `if c: return x` is its other
branch, so that no flag is asked.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshrun.runner.compiler.control.scope import (
    LOOPS,
    always_leaves,
    blocks_of,
    leaves,
    leaves_finally,
    located,
)

TRY: Any = (ast.Try, getattr(ast, "TryStar", ast.Try))  # TryStar: from Python 3.11 on
RETURNED, RESULT = "<returned>", "<result>"


@dataclass
class Jumps:
    """The jumps of one function.

    exits: of each loop, the flags that end it. asked: the flags that a statement asks.
    stay: the loops and conditions that are left as they are.
    """

    exits: dict[ast.stmt, list[str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    stay: set[ast.stmt] = field(default_factory=set)
    _some_stay: bool = False

    def lowered(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """Return the statements of a function without jumps out of its loops and branches."""
        body = function.body
        self._some_stay = leaves_finally(body)
        inside = [block for statement in body for block in blocks_of(statement)]
        if self._some_stay or not any(ast.Return in leaves(block) for block in inside):
            return self._block(body, None, returns=False)
        end = located(ast.Return(None), body[-1])
        lowered = self._block([*body, end], None, returns=True)
        start = _assign(RETURNED, ast.Constant(False), body[0])
        value = located(ast.Name(RESULT, ast.Load()), body[-1])
        return [start, *lowered, located(ast.Return(value), body[-1])]

    def _block(self, statements: Sequence[ast.stmt], loop: ast.stmt | None, returns: bool) -> list[ast.stmt]:
        """Return the statements of a block without jumps.

        loop: the innermost loop around them that is converted. returns: whether `return` sets a flag.
        """
        lowered: list[ast.stmt] = []
        for at, statement in enumerate(statements):
            rest = list(statements[at + 1 :])
            if isinstance(statement, ast.Return) and returns:
                value = statement.value or located(ast.Constant(None), statement)
                lowered += [
                    _assign(RESULT, value, statement),
                    _assign(RETURNED, ast.Constant(True), statement),
                ]
                return lowered
            if isinstance(statement, (ast.Break, ast.Continue)) and loop is not None:
                return [*lowered, _assign(_flag(statement, loop), ast.Constant(True), statement)]
            kinds = leaves([statement])
            if self._some_stay and (kinds or leaves_finally([statement])):
                self.stay.add(statement)
            # A branch that always leaves: what follows is the other branch.
            if isinstance(statement, ast.If) and kinds and statement not in self.stay:
                if always_leaves(statement.body):
                    statement.orelse, rest = [*statement.orelse, *rest], []
                elif always_leaves(statement.orelse):
                    statement.body, rest = [*statement.body, *rest], []
            if isinstance(statement, LOOPS) and statement not in self.stay:
                return lowered + self._loop(statement, rest, loop, returns)
            if isinstance(statement, TRY):
                # The else clause runs after the end of the body, which a jump does not reach.
                flags = self._flags(leaves(statement.body), loop, returns)
                statement.orelse = self._unless(flags, statement.orelse)
            own = statement.body if isinstance(statement, LOOPS) else None
            for block in blocks_of(statement):
                block[:] = self._block(block, None if block is own else loop, returns)
            lowered.append(statement)
            flags = self._flags(kinds, loop, returns)
            if flags and rest:
                return lowered + self._block(self._unless(flags, rest), loop, returns)
            if isinstance(statement, ast.If) and not rest:
                return lowered
        return lowered

    def _loop(
        self, statement: ast.stmt, rest: list[ast.stmt], loop: ast.stmt | None, returns: bool
    ) -> list[ast.stmt]:
        """Return a loop that is converted, its else clause, and what follows."""
        assert isinstance(statement, LOOPS)
        kinds = leaves(statement.body)
        flag = _flag(ast.Break(), statement)
        exits = [flag] if ast.Break in kinds else []
        exits += [RETURNED] if ast.Return in kinds and returns else []
        self.exits[statement] = exits
        self.asked.update(exits)
        start = [_assign(flag, ast.Constant(False), statement)] if ast.Break in kinds else []
        again = _assign(_flag(ast.Continue(), statement), ast.Constant(False), statement)
        body = self._block(statement.body, statement, returns)
        statement.body = [again, *body] if ast.Continue in kinds else body
        # The else clause runs if the loop was not left.
        orelse, statement.orelse = statement.orelse, []
        following = self._unless(exits, orelse) if orelse else []
        if ast.Return in kinds and returns and rest:
            rest = self._unless([RETURNED], rest)
        return [*start, statement, *self._block([*following, *rest], loop, returns)]

    def _flags(self, kinds: frozenset[type[ast.stmt]], loop: ast.stmt | None, returns: bool) -> list[str]:
        """Return the flags that jumps of some kinds set."""
        flags = (
            []
            if loop is None
            else [_flag(kind(), loop) for kind in (ast.Break, ast.Continue) if kind in kinds]
        )
        return [*flags, RETURNED] if ast.Return in kinds and returns else flags

    def _unless(self, flags: Sequence[str], statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements that run if none of the flags is set."""
        if not flags or not statements:
            return statements
        self.asked.update(flags)
        guard = ast.If(none_of(flags), statements, [])
        return [located(guard, statements[0])]


def is_flag(name: str) -> bool:
    """Return whether a variable is one of those that jumps assign."""
    return name.startswith("<")


def none_of(flags: Sequence[str]) -> ast.expr:
    """Return the test that no flag is set."""
    names: list[ast.expr] = [ast.Name(flag, ast.Load()) for flag in flags]
    return ast.UnaryOp(ast.Not(), names[0] if len(names) == 1 else ast.BoolOp(ast.Or(), names))


def _flag(jump: ast.stmt, loop: ast.stmt) -> str:
    """Return the name of the flag of a jump out of a loop, or to its next iteration."""
    return f"<{'break' if isinstance(jump, ast.Break) else 'continue'} {loop.lineno}>"


def _assign(name: str, value: ast.expr, like: ast.stmt) -> ast.Assign:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    assigned: ast.Assign = located(statement, like)
    return assigned

"""Find values that a kernel need not compute for most cells: those that only one side of a `where` needs.

A kernel computes them in a branch, which a thread takes if one of its cells selects that side. The bits of
the results are the same: what is not selected is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Generic, TypeVar

from meshrun.runner.compiler.operations import INEXACT
from meshrun.runner.compiler.trace.graph import BOOL, FREE, Graph, Node, Program, in_order

LEAST = 12.0  # operations for each condition that make a branch worth its test
COSTS = {
    "divide": 8.0, "sqrt": 8.0, "floor_divide": 20.0, "remainder": 20.0, "power": 40.0, "exp": 20.0,
    "log": 20.0, "sin": 20.0, "cos": 20.0, "tan": 30.0, "tanh": 30.0, "arctan2": 40.0, "hypot": 20.0,
}  # fmt: skip
LEAST_SAVED = 5  # operations that most cells leave out, for each of the test that is made for all cells
MOST_NESTED = 4  # branches, of which each is in the other side of the one before
Literal = tuple[int, bool | None]  # a batch of wheres, and one of its sides; None: either

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Branch(Generic[V]):
    """`where`s that are tested together: only if a cell selects `side`, both sides are computed.

    wheres: each has a condition, a value if it is true, and one if it is false. side: the one that may be
    left out. before: what is computed before the test. All else that only these wheres need is written twice,
    for both sides and for the other side alone: neither keeps registers for the other.
    """

    wheres: tuple[V, ...]
    side: bool
    before: tuple[V, ...]


def cost(node: Node) -> float:
    """Return the cost of an operation, in additions."""
    return 0.0 if node.op in FREE else COSTS.get(node.op, 1.0)


class Conditions:
    """Tell which conditions are the same for another cell: such are tested together."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[Node, Node] = {}

    def __call__(self, condition: Node) -> Node:
        """Return the condition, moved so that its first load is of the own cell."""
        if condition not in self._known:
            first = next((one.offset for one in in_order([condition]) if one.op == "load"), ())
            (moved,) = self._graph.shifted([condition], tuple(-at for at in first))
            self._known[condition] = moved
        return self._known[condition]


def find_branches(
    results: Iterable[V],
    needs: Callable[[V], Sequence[V]],
    condition: Callable[[V], Hashable | None],
    cost: Callable[[V], float],
    everywhere: Callable[[V], bool] = lambda _: False,
) -> dict[V, Branch[V]]:
    """Return the branch of each `where` that has one.

    results: what is wanted of a thread's cells. needs: of a value, what it is computed from. condition: of a
    `where`, whose needs are its condition and two values, what is equal for conditions to be tested together;
    otherwise None. everywhere: whether all threads must compute a value, as others read it.
    """
    results = tuple(results)
    order = _in_order(results, needs)
    kinds = {one: condition(one) for one in order}
    # Levels make the order of branches: all of a branch is of one level, and depends on lower ones only.
    level: dict[V, int] = {}
    for one in order:
        level[one] = max((level[need] for need in needs(one)), default=0) + (kinds[one] is not None)
    places = {one: place for place, one in enumerate(order)}
    order.sort(key=lambda one: (level[one], kinds[one] is None, places[one]))
    batches: dict[tuple[Hashable, int], list[V]] = {}
    for one in order:
        if kinds[one] is not None:
            batches.setdefault((kinds[one], level[one]), []).append(one)
    batch = {one: number for number, batch in enumerate(batches.values()) for one in batch}
    members = list(batches.values())
    guards = _guards(results, order, needs, batch, members, everywhere)
    costs: dict[Literal, float] = {}
    for one in order:
        for literal in guards[one]:
            costs[literal] = costs.get(literal, 0.0) + cost(one)
    kept = {
        (number, side)
        for (number, side), total in costs.items()
        if side is not None and total >= LEAST * len({needs(one)[0] for one in members[number]})
    }
    # A mask usually selects what few cells are: its own side is left out if both cost enough.
    sides = {number: (number, True) in kept for number, _ in sorted(kept, key=lambda literal: literal[0])}
    inside: dict[Literal, list[V]] = {(number, None): [] for number in sides}
    for one in order:
        for literal in guards[one] & inside.keys():
            inside[literal].append(one)
    found: dict[V, Branch[V]] = {}
    for number, side in sides.items():
        wheres, parts = members[number], dict.fromkeys(inside[number, None])
        if len(guards[wheres[0]] & inside.keys()) >= MOST_NESTED:
            continue
        before = [needs(one)[0] for one in wheres]
        before += [need for one in (*wheres, *parts) for need in needs(one)]
        outside = tuple(dict.fromkeys(one for one in before if one not in parts))
        found |= dict.fromkeys(wheres, Branch(tuple(wheres), side, outside))
    return found


def _guards(
    results: Sequence[V],
    order: Sequence[V],
    needs: Callable[[V], Sequence[V]],
    batch: dict[V, int],
    members: Sequence[Sequence[V]],
    everywhere: Callable[[V], bool],
) -> dict[V, frozenset[Literal]]:
    """Return the sides of batches that all users of a value are on: it is needed only if they all are."""
    guards: dict[V, frozenset[Literal]] = {one: frozenset() for one in results}
    done: set[int] = set()

    def use(value: V, guard: frozenset[Literal]) -> None:
        guards[value] = guards[value] & guard if value in guards else guard

    for one in reversed(order):
        number = batch.get(one)
        if number is None:
            if everywhere(one):
                guards[one] = frozenset()
            for need in needs(one):
                use(need, guards[one])
        elif number not in done:  # all of a batch is computed where any of it is needed
            done.add(number)
            if any(map(everywhere, members[number])):
                guard: frozenset[Literal] = frozenset()
            else:
                guard = frozenset.intersection(*(guards[where] for where in members[number]))
            for where in members[number]:
                guards[where] = guard
                chosen, yes, no = needs(where)
                use(chosen, guard)
                use(yes, guard | {(number, True), (number, None)})
                use(no, guard | {(number, False), (number, None)})
    return guards


def _in_order(results: Iterable[V], needs: Callable[[V], Sequence[V]]) -> list[V]:
    found: dict[V, None] = {}
    waiting = list(results)[::-1]
    while waiting:
        one = waiting[-1]
        missing = [need for need in needs(one) if need not in found]
        if missing and one not in found:
            waiting += missing[::-1]
        else:
            found.setdefault(waiting.pop())
    return list(found)


@lru_cache(maxsize=16)  # the choices of a kernel ask for those of one program again and again
def branches_of(program: Program) -> Mapping[Node, Branch[Node]]:
    """Return the branch of each `where` of a program that has one, for a kernel of single cells."""

    def condition(node: Node) -> Node | None:
        return node.operands[0] if node.op == "where" else None

    return find_branches(_results(program), lambda node: node.operands, condition, cost)


def common_values(
    results: Iterable[V], needs: Callable[[V], Sequence[V]], branches: Mapping[V, Branch[V]]
) -> list[V]:
    """Return the values that are computed even where all branches leave out a side."""

    def needed(value: V) -> Sequence[V]:
        branch = branches.get(value)
        return needs(value) if branch is None else (*branch.before, needs(value)[2 if branch.side else 1])

    return _in_order(results, needed)


def common_nodes(program: Program, sides: Collection[bool] = (True, False)) -> list[Node]:
    """Return the nodes that are computed for a cell for which all branches leave out a side.

    sides: of conditions; other branches leave out nothing.
    """
    branches = {where: branch for where, branch in branches_of(program).items() if branch.side in sides}

    def needs(node: Node) -> Sequence[Node]:
        return (node.operands[0], _kept(node, branches)) if node in branches else node.operands

    return [node for node in _in_order(_results(program), needs) if node not in branches]


def leaves_out_masked(program: Program) -> bool:
    """Return whether a branch leaves out what only cells need for which a condition is true."""
    return any(branch.side for branch in branches_of(program).values())


@dataclass(frozen=True)
class BranchCost:
    """A branch as its author sees it. line: of its condition, in the user's file; 0 if unknown. side: of the
    condition, for which a cell needs it. operations: that only it needs."""

    line: int
    side: bool
    operations: int


def branch_costs(program: Program) -> list[BranchCost]:
    """Return what each branch of a program costs, in the order of their lines."""
    branches, found = branches_of(program), []
    for branch in dict.fromkeys(branches.values()):
        wheres = dict.fromkeys(branch.wheres)

        def needs(node: Node, wheres: dict[Node, None] = wheres) -> Sequence[Node]:
            return (node.operands[0], _kept(node, branches)) if node in wheres else node.operands

        others = _in_order(_results(program), needs)
        first = branch.wheres[0]
        found.append(
            BranchCost(
                first.operands[0].line or first.line,
                branch.side,
                program.operations - sum(node.op not in FREE for node in others),
            )
        )
    return sorted(found, key=lambda one: (one.line, -one.operations))


def common_operations(program: Program) -> int:
    """Return the number of operations of such a cell, counted as `Program.operations`."""
    return sum(node.op not in FREE for node in common_nodes(program))


@dataclass(frozen=True)
class CommonPath:
    """What a program computes where no cell selects what branches leave out. test: whether a cell does."""

    program: Program
    test: Node


def common_path(program: Program) -> CommonPath | None:
    """Return the common path of a program; None if it is not worth its test."""
    branches, graph = branches_of(program), program.graph

    def needs(node: Node) -> Sequence[Node]:
        return (_kept(node, branches),) if node in branches else node.operands

    made: dict[Node, Node] = {}
    tests: dict[Node, None] = {}
    for node in _in_order(_results(program), needs):
        if node in branches:
            made[node] = made[_kept(node, branches)]
            (chosen, *_), side = node.operands, branches[node].side
            tests.setdefault(chosen if side else graph.operation("logical_not", BOOL, [chosen]))
        elif node.operands:
            operands = [made[one] for one in node.operands]
            if node.op in INEXACT and all(one.op == "constant" for one in operands):
                return None  # NumPy would compute it now, and the compiler where the test is true
            made[node] = graph.operation(node.op, node.dtype, operands, node.line)
        else:
            made[node] = node
    if not tests:
        return None
    test = reduce(lambda a, b: graph.operation("logical_or", BOOL, [a, b]), tests)
    results = tuple(tuple(made[node] for node in result) for result in program.results)
    common = replace(program, results=results)
    left_out = _cost(program.nodes) - _cost(common.nodes)
    return CommonPath(common, test) if _cost(in_order([test])) * LEAST_SAVED <= left_out else None


def _results(program: Program) -> list[Node]:
    return [node for result in program.results for node in result]


def _kept(where: Node, branches: Mapping[Node, Branch[Node]]) -> Node:
    """Return the value of a `where` for cells that do not select the side that is left out."""
    return where.operands[2 if branches[where].side else 1]


def _cost(nodes: Iterable[Node]) -> float:
    return sum(map(cost, nodes))


def write(
    branch: Branch[V],
    needs: Callable[[V], Sequence[V]],
    name: Callable[[V, bool], str],
    kind: Callable[[V], str],
    declare: Callable[[V], str],
    lines: list[str],
    names: dict[V, str],
    test: str = "",
    leave: Callable[[], None] = lambda: None,
) -> None:
    """Write a branch whose `before` is written.

    name: writes a value, without other branches if told so, and returns its name. kind: its C++ type.
    declare: a new name for it. names: of what is written; those that only the branch can see are removed.
    test: a function with which the threads of a warp decide together. leave: called after each side.
    """
    side = branch.side
    for where in branch.wheres:
        names[where] = declare(where)
        lines.append(f"{kind(where)} {names[where]};")
    conditions = dict.fromkeys(names[needs(where)[0]] for where in branch.wheres)
    any_of = " | ".join(f"({one})" if side else f"!({one})" for one in conditions)
    lines.append(f"if ({test}({any_of})) {{")
    outside = len(names)
    for where in branch.wheres:
        chosen, yes, no = needs(where)
        values = name(yes, True), name(no, True)
        lines.append(f"{names[where]} = ({names[chosen]}) ? {values[0]} : {values[1]};")
    _forget(names, outside)
    leave()
    lines.append("} else {")
    for where in branch.wheres:
        _, yes, no = needs(where)
        lines.append(f"{names[where]} = {name(no if side else yes, False)};")
    _forget(names, outside)
    leave()
    lines.append("}")


def _forget(names: dict[V, str], count: int) -> None:
    """Remove all names but the first ones."""
    for one in list(names)[count:]:
        del names[one]

"""The variables of a function, and which statements leave others: by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# They assign a variable by an attribute of their own, or from within a comprehension.
BINDING = (
    *(*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.NamedExpr),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
POSITIONED = (ast.expr, ast.stmt, ast.arg, ast.keyword, ast.alias)  # nodes that have a line
# They read or change the variables of the function that calls them.
FRAME_READERS = {"locals", "vars", "dir", "eval", "exec"}
SUSPENDED = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)  # of generators and coroutines


@dataclass(frozen=True)
class Scope:
    """The variables of a function.

    local: its own. global_, outer: those that it declares global and nonlocal. shared: its own that functions
    inside it assign. first: name of its first parameter, "" if it has none. class_name: of the class around
    it, or "". super_is_known: whether the globals have no other `super`.
    """

    local: frozenset[str]
    global_: frozenset[str]
    outer: frozenset[str]
    shared: frozenset[str]
    first: str
    class_name: str
    super_is_known: bool

    def mangled(self, name: str) -> str:
        """Return a variable's name as Python keeps it: private ones have the name of the class."""
        around = self.class_name.lstrip("_")
        is_private = name.startswith("__") and not name.endswith("__") and around
        return f"_{around}{name}" if is_private else name


def scope_of(function: ast.FunctionDef, class_name: str, super_is_known: bool) -> Scope | None:
    """Return the variables of a function. None if its statements cannot be functions.

    These are generators, and functions that ask for their variables by name. super_is_known: whether the
    globals have no other `super`.
    """
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    parameters = [*positional, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    bound = {parameter.arg for parameter in parameters}
    global_, outer, shared, read = set[str](), set[str](), set[str](), set[str]()
    for node, in_comprehension in _own_nodes(function.body):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.add(node.id)
            elif not in_comprehension:
                bound.add(node.id)
            continue
        if isinstance(node, SUSPENDED) or (isinstance(node, ast.comprehension) and node.is_async):
            return None
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            inside = (each for each in ast.walk(node) if isinstance(each, ast.Nonlocal))
            shared.update(name for each in inside for name in each.names)
        elif isinstance(node, ast.Global):
            global_.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            outer.update(node.names)
        if isinstance(node, BINDING):
            bound.update(bound_names(node))
    first = positional[0].arg if positional else ""
    knows_super = class_name and first and super_is_known and "super" not in bound | global_ | outer
    if read & FRAME_READERS or ("super" in read and not knows_super):
        return None
    local = frozenset(bound - global_ - outer)
    return Scope(
        local, frozenset(global_), frozenset(outer), local & shared, first, class_name, super_is_known
    )


def bound_names(node: ast.AST) -> list[str]:
    """Return the variables that a node of BINDING assigns."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.NamedExpr):
        return [node.target.id]
    name = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name")
    return [name] if name else []


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a node, but for contexts and operators, which have no line."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            if vars(value):
                yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, ast.AST))


def _own_nodes(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the nodes that a function itself runs, and whether each is in a comprehension."""
    waiting = [(node, False) for node in nodes]
    while waiting:
        node, inside = waiting.pop()
        yield node, inside
        inner: Iterable[ast.AST] = children(node)
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            inner = (*node.args.defaults, *filter(None, node.args.kw_defaults))
            inner = (*inner, *getattr(node, "decorator_list", ()))
        elif isinstance(node, ast.ClassDef):
            inner = (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords))
        inside = inside or isinstance(node, COMPREHENSIONS)
        waiting += [(child, inside) for child in inner]


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a statement of the function itself."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(node, name, None), list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def leaves(statements: Sequence[ast.stmt]) -> frozenset[type[ast.stmt]]:
    """Return by what the statements may leave the block that they are in: Return, Break, Continue."""
    kinds: set[type[ast.stmt]] = set()
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            kinds.add(type(statement))
        elif isinstance(statement, LOOPS):
            kinds |= leaves(statement.body) - {ast.Break, ast.Continue} | leaves(statement.orelse)
        else:
            for block in blocks_of(statement):
                kinds |= leaves(block)
    return frozenset(kinds)


def always_leaves(statements: Sequence[ast.stmt]) -> bool:
    """Return whether no statement after these in their block is reached, as they leave it by themselves."""
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            return True
        if (
            isinstance(statement, ast.If)
            and always_leaves(statement.body)
            and always_leaves(statement.orelse)
        ):
            return True
    return False


def leaves_finally(statements: Sequence[ast.stmt]) -> bool:
    """Return whether a `finally` clause among the statements is left, which also drops an exception."""
    for statement in statements:
        if leaves(getattr(statement, "finalbody", [])):
            return True
        if any(leaves_finally(block) for block in blocks_of(statement)):
            return True
    return False


def located(node: Any, like: ast.AST) -> Any:
    """Give a new node, and the nodes in it that have none, the position of another; return it."""
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        setattr(node, name, getattr(like, name))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, POSITIONED) and not hasattr(child, "lineno"):
            located(child, like)
        elif isinstance(child, ast.arguments):
            for parameter in (*child.args, *filter(None, (child.vararg,))):
                located(parameter, like)
    return node


def parameters_named(names: Sequence[str] = (), vararg: str | None = None) -> ast.arguments:
    """Return the parameters of a function: some by name, and one that takes any further arguments."""
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in names],
        vararg=ast.arg(vararg) if vararg else None,
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )

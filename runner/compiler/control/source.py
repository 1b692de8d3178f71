"""Where a file has a function, and how a function of that source is compiled."""

from __future__ import annotations
import __future__

import ast
import functools
import re
import types
from dataclasses import dataclass
from typing import Any

from meshrun.runner.compiler.control.scope import FUNCTIONS, bound_names, children, located, parameters_named

Holder = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
TOP = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)  # a position
INSIDE = re.compile(r"<(for|while|if|else|test)>\.<locals>\.")  # in the qualified name of a user's function


@dataclass(frozen=True)
class Definition:
    """Where a file has a function.

    first, last: its lines. around: the functions and classes around it, from the outermost on. imports: names
    that the module imports, which make another code of calls of their attributes.
    """

    first: int
    last: int
    around: tuple[Holder, ...]
    imports: frozenset[str]


@functools.lru_cache(maxsize=64)
def functions_in(text: str) -> dict[tuple[str, int], list[Definition]]:
    """Return the functions of a file by name and first line."""
    functions: list[tuple[ast.FunctionDef, tuple[Holder, ...]]] = []
    imports = set[str]()
    try:
        waiting: list[tuple[ast.AST, tuple[Holder, ...]]] = [(ast.parse(text), ())]
    except (SyntaxError, ValueError):
        return {}
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            functions.append((node, around))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and not around:
            imports.update(bound_names(node))
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            around = (*around, node)
        if not isinstance(node, ast.expr):
            waiting += [(child, around) for child in children(node)]
    definitions: dict[tuple[str, int], list[Definition]] = {}
    for function, around in functions:
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        last = function.end_lineno or first
        definition = Definition(first, last, around, frozenset(imports - {"*"}))
        definitions.setdefault((function.name, first), []).append(definition)
    return definitions


def compiled_as(
    function: ast.FunctionDef, code: types.CodeType, definition: Definition
) -> types.CodeType | None:
    """Return the code of a function in functions and classes of the same names as in its file.

    code: its own; what it reads of the functions around it are variables of the outermost one.
    """
    names = [name for name in code.co_freevars if name != "__class__"]
    outside = ast.Assign([ast.Name(name, ast.Store()) for name in names], ast.Constant(None))
    outermost = next((node for node in definition.around if isinstance(node, FUNCTIONS)), None)
    block: list[ast.stmt] = [function]
    for node in reversed(definition.around):
        if isinstance(node, ast.ClassDef):
            holder: Any = ast.ClassDef(name=node.name, bases=[], keywords=[], body=block, decorator_list=[])
        else:
            body = [outside, *block] if names and node is outermost else block
            holder = ast.FunctionDef(name=node.name, args=parameters_named(), body=body, decorator_list=[])
        holder.type_params = []  # from Python 3.12 on
        block = [located(holder, TOP)]
    imports: list[ast.stmt] = [located(ast.Import([ast.alias(name)]), TOP) for name in definition.imports]
    module = ast.Module([*imports, *block], [])
    flags = code.co_flags & __future__.annotations.compiler_flag
    try:
        compiled: types.CodeType = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    waiting = [compiled]
    while waiting:
        each = waiting.pop()
        if each.co_name == code.co_name and each.co_firstlineno == code.co_firstlineno:
            return each
        waiting += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
    return None


def renamed(code: types.CodeType) -> types.CodeType:
    """Return the code with the qualified names that functions inside it have in the source."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(renamed(constant))
        else:
            constants.append(INSIDE.sub("", constant) if isinstance(constant, str) else constant)
    changes: dict[str, Any] = {"co_consts": tuple(constants)}
    if hasattr(code, "co_qualname"):  # from Python 3.11 on
        changes["co_qualname"] = INSIDE.sub("", code.co_qualname)
    return code.replace(**changes)

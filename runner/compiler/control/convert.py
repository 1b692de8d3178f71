"""Make the code of a function whose loops and conditions are calls of a control object.

    for row in rows:
        total = total + row

    def <for>(<item>):
        nonlocal total, row
        row = <item>
        total = total + row
    __control__.for_loop(rows, None, <for>, __control__.state(lambda: (row, total), ("row", "total")))

The bodies are functions inside the function, so they read and assign its own variables. Names in <> cannot be
those of a user. The code has the file and the lines of the source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Sequence

from meshrun.runner.compiler.control.plain import CONTROL
from meshrun.runner.compiler.control.scope import FRAME_READERS, located, scope_of
from meshrun.runner.compiler.control.source import Definition, compiled_as, functions_in, renamed
from meshrun.runner.compiler.control.statements import StatementConverter

# Python 3.11 counts the depth of syntax trees for all threads together.
_LOCK = threading.Lock()
# What Python calls code that is never converted.
PLAIN = {
    "<lambda>": "lambda",
    "<genexpr>": "generator expression",
    "<listcomp>": "comprehension",
    "<setcomp>": "comprehension",
    "<dictcomp>": "comprehension",
}


def convert(function: types.FunctionType) -> types.CodeType | None:
    """Return the code of a function whose loops and conditions are calls of `__control__`.

    Parameters
    ----------
    function: a plain function. Its globals need the name `__control__` when it runs with this code.

    Returns
    -------
    The code, with the parameters, closure, file and lines of the function's own. None if it has nothing to
    convert, if it is a lambda or a generator, if it asks for its variables by name, such as by locals(), and
    if its source is not known, or is no longer what it was compiled from.

    Examples
    --------
    >>> from meshrun.runner.compiler.control.plain import PlainControl
    >>> code = convert(function)
    >>> converted = types.FunctionType(code, {**function.__globals__, "__control__": PlainControl()})
    """
    super_is_known = "super" not in function.__globals__
    code = function.__code__
    with _LOCK:
        return _converted(code, code.co_filename, code.co_linetable, super_is_known)


def why_plain() -> str:
    """Return where a condition that runs now stands, if it is Python's own: a part of a message."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and CONTROL not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    if code.co_name in PLAIN:
        return f"in a {PLAIN[code.co_name]}"
    if code.co_flags & inspect.CO_GENERATOR:
        return "in a generator"
    for name in FRAME_READERS & {*code.co_names}:
        return f"in a function that calls {name}()"
    if not linecache.getlines(code.co_filename):
        return "in a function whose source is not in a file"
    statement = "the statement has := or a lambda, leaves a finally clause, or its file changed"
    return f"where it is not traced: {statement}"


@functools.lru_cache(maxsize=1024)
def _converted(
    code: types.CodeType, file: str, lines_of_code: bytes, super_is_known: bool
) -> types.CodeType | None:
    """Return the converted code of a function.

    file, lines_of_code: parts of the key, which equal codes need not have in common.
    """
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user has seen them
            for definition in functions_in("".join(lines)).get((code.co_name, code.co_firstlineno), ()):
                own = lines[definition.first - 1 : definition.last]
                converted = _of_source(code, own, definition, super_is_known)
                if converted is not None:
                    return converted
    except (SyntaxError, RecursionError):  # of another text than was compiled; or of very deep expressions
        return None
    return None


def _of_source(
    code: types.CodeType, lines: Sequence[str], definition: Definition, super_is_known: bool
) -> types.CodeType | None:
    """Return the converted code of a function, by its source. None if that is another function's."""
    first = definition.first
    is_indented = lines[0][:1] in (" ", "\t")
    if is_indented and first == 1:
        return None
    blank = "\n" * (first - 2) + "if 1:\n" if is_indented else "\n" * (first - 1)
    (statement,) = ast.parse(blank + "".join(lines)).body
    function = statement.body[0] if isinstance(statement, ast.If) else statement
    if not isinstance(function, ast.FunctionDef):
        return None
    # What stands before the body is run by the code around it.
    decorators = function.decorator_list
    function.decorator_list = [located(ast.Constant(None), each) for each in decorators]
    given = function.args
    given.defaults = [located(ast.Constant(None), each) for each in given.defaults]
    given.kw_defaults = [each and located(ast.Constant(None), each) for each in given.kw_defaults]
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    for parameter in filter(None, every):
        parameter.annotation = None
    function.returns = None
    # The source must be that of the code: a file may have changed since.
    original = compiled_as(function, code, definition)
    if original is None or original != code or original.co_linetable != code.co_linetable:
        return None
    classes = [node.name for node in definition.around if isinstance(node, ast.ClassDef)]
    scope = scope_of(function, classes[-1] if classes else "", super_is_known)
    if scope is None or not StatementConverter(scope).convert(function):
        return None
    converted = compiled_as(function, code, definition)
    if converted is None or converted.co_freevars != code.co_freevars:
        return None
    return renamed(converted)

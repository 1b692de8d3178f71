"""Statements and operators of a function become calls of the control object, in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, cast

from meshrun.runner.compiler.control.jumps import RESULT, Jumps, is_flag, none_of
from meshrun.runner.compiler.control.plain import CONTROL, OPERAND
from meshrun.runner.compiler.control.scope import (
    BINDING,
    Scope,
    bound_names,
    located,
    parameters_named,
    scope_of,
)

ITEM = "<item>"
OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",  # codespell:ignore notin
}
DEEPEST = 60  # functions in each other; a call of each takes three of Python's 1000 frames


class _Names:
    """The variables that a statement reads, assigns, and has for itself."""

    def __init__(self) -> None:
        self.read, self.assigned, self.own = set[str](), set[str](), set[str]()


class StatementConverter:
    """Converts the statements of one function."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._jumps = Jumps()
        self._names = [_Names()]
        self._depth = 0  # functions, of statements and operands, around the current node
        self._in_target = False  # of a comprehension
        self._handled = 0  # `try` statements around the current node
        self._calls_control = False

    def convert(self, function: ast.FunctionDef) -> bool:
        """Convert a function's statements in place. Return whether there are any."""
        has_docstring = ast.get_docstring(function, clean=False) is not None
        start, function.body = function.body[:has_docstring], function.body[has_docstring:]
        if not function.body:
            return False
        first = function.body[0]
        body = self._block(self._jumps.lowered(function))
        declared: list[ast.stmt] = [ast.Global(sorted(self._scope.global_))] if self._scope.global_ else []
        declared += [ast.Nonlocal(sorted(self._scope.outer))] if self._scope.outer else []
        # All variables are the function's, also those that only its parts assign.
        local = sorted(self._scope.local | set(filter(is_flag, self._names[0].assigned)))
        if self._calls_control and local:
            names: list[ast.expr] = [ast.Name(name, ast.Store()) for name in local]
            declared.append(ast.If(ast.Constant(False), [ast.Assign(names, ast.Constant(None))], []))
        function.body = [*start, *(located(each, first) for each in declared), *body]
        return self._calls_control

    # Statements

    def visit_If(self, node: ast.If) -> Any:
        if node in self._jumps.stay:
            return self.generic_visit(node)
        test = self._test(node.test)
        error = self._error_raised(node)
        if error is not None:
            call = self._call_statement("fail_if", [test, self._operand(error)], node.body[0])
            return [call, *self._block(node.orelse)]
        names = _Names()
        then = self._function("<if>", node, node.body, names)
        functions: list[ast.stmt] = [then]
        otherwise: ast.expr = ast.Constant(None)
        if node.orelse:
            functions.append(self._function("<else>", node.orelse[0], node.orelse, names))
            otherwise = ast.Name("<else>", ast.Load())
        arguments = [test, ast.Name("<if>", ast.Load()), otherwise, self._state(names)]
        return [*functions, self._call_statement("branch", arguments, node.test)]

    def _error_raised(self, node: ast.If) -> ast.expr | None:
        """Return what `if ...: raise error` raises; None for other statements, and where it may be caught."""
        first = node.body[0]
        if self._handled or not isinstance(first, ast.Raise) or first.cause is not None:
            return None
        return first.exc if first.exc is not None and _is_operand(first.exc) else None

    def visit_Try(self, node: Any) -> Any:
        self._handled += 1
        self.generic_visit(node)
        self._handled -= 1
        # What is not traced is never for a handler of the function.
        if node.handlers and isinstance(node, ast.Try):
            self._calls_control = True
            control = ast.Attribute(ast.Name(CONTROL, ast.Load()), "refusal", ast.Load())
            passed_on = ast.ExceptHandler(control, None, [ast.Raise()])
            node.handlers.insert(0, located(passed_on, node.handlers[0]))
        return node

    visit_TryStar = visit_Try

    def visit_While(self, node: ast.While) -> Any:
        if node in self._jumps.stay:
            return self.generic_visit(node)
        wanted, exits = node.test, self._jumps.exits[node]
        if exits:
            always = isinstance(wanted, ast.Constant) and wanted.value
            wanted = none_of(exits) if always else ast.BoolOp(ast.And(), [none_of(exits), wanted])
            wanted = located(wanted, node.test)
        names = _Names()
        returned = located(ast.Return(wanted), node.test)
        test = self._function("<test>", node.test, [returned], names)
        body = self._function("<while>", node, node.body, names)
        functions: list[ast.expr] = [ast.Name(name, ast.Load()) for name in ("<test>", "<while>")]
        call = self._call_statement("while_loop", [*functions, self._state(names)], node.test)
        return [test, body, call]

    def visit_For(self, node: ast.For) -> Any:
        if node in self._jumps.stay:
            return self.generic_visit(node)
        names, exits = _Names(), self._jumps.exits[node]
        iterable = self.visit(node.iter)
        item = located(ast.Name(ITEM, ast.Load()), node.target)
        target = located(ast.Assign([node.target], item), node.target)
        functions = [self._function("<for>", node, [target, *node.body], names, [ITEM])]
        go_on: ast.expr = ast.Constant(None)
        if exits:
            returned = located(ast.Return(none_of(exits)), node.iter)
            functions.append(self._function("<test>", node.iter, [returned], names))
            go_on = ast.Name("<test>", ast.Load())
        arguments = [iterable, go_on, ast.Name("<for>", ast.Load()), self._state(names)]
        return [*functions, self._call_statement("for_loop", arguments, node.iter)]

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = node.msg
        if not __debug__ or (message is not None and not _is_operand(message)):
            return self.generic_visit(node)
        given = ast.Constant(None) if message is None else self._operand(message)
        return self._call_statement("check", [self._test(node.test), given], node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if isinstance(target, ast.Name) and is_flag(target.id) and target.id != RESULT:
            if target.id not in self._jumps.asked:
                return located(ast.Pass(), node)
            if isinstance(node.value, ast.Constant) and node.value.value is False:
                self._names[-1].own.add(target.id)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        # A nonlocal variable has no annotation; a local one's is never evaluated.
        if node.value is None:
            return located(ast.Pass(), node)
        return self.generic_visit(located(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if isinstance(node.target, ast.Name):
            self._names[-1].read.add(node.target.id)
        return self.generic_visit(node)

    def visit_Global(self, node: ast.stmt) -> Any:
        return located(ast.Pass(), node)  # declared where the function begins

    visit_Nonlocal = visit_Global

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        self._names[-1].assigned.add(node.name)
        self._note_all(node)
        if isinstance(node, ast.FunctionDef):
            scope = scope_of(node, self._scope.class_name, self._scope.super_is_known)
            if scope is not None:
                self._calls_control |= StatementConverter(scope).convert(node)
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        self._visit_defaults(node.args)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def _visit_defaults(self, given: ast.arguments) -> None:
        given.defaults = [self.visit(each) for each in given.defaults]
        given.kw_defaults = [each and self.visit(each) for each in given.kw_defaults]

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self._names[-1].assigned.add(node.name)
        self._note_all(node)
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.bases = [self.visit(each) for each in node.bases]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit(self, node: ast.AST) -> Any:
        visitor: Callable[[Any], Any] = getattr(self, f"visit_{type(node).__name__}", self.generic_visit)
        return visitor(node)

    def generic_visit(self, node: Any) -> Any:
        """Convert what is in a node. Contexts and operators, which hold nothing, are left out."""
        if isinstance(node, BINDING):
            self._names[-1].assigned.update(bound_names(node))
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, ast.AST):
                if vars(value):
                    setattr(node, name, self.visit(value))
            elif isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    value[:] = self._block(value)
                else:
                    value[:] = [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
        return node

    # Expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load):
            self._names[-1].read.add(node.id)
        elif not self._in_target:
            self._names[-1].assigned.add(node.id)
            if isinstance(node.ctx, ast.Del):
                self._names[-1].read.add(node.id)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self._note_all(node)
        self._visit_defaults(node.args)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        node.iter = self.visit(node.iter)
        before, self._in_target = self._in_target, True
        node.target = self.visit(node.target)
        self._in_target = before
        node.ifs = [self._test(each) for each in node.ifs]
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        self._names[-1].assigned.add(node.target.id)
        node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and self._depth:
            # In a function of its own, it finds neither the class nor the object.
            node.args = [
                located(ast.Name(name, ast.Load()), node) for name in ("__class__", self._scope.first)
            ]
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        return self._logical(node, is_test=False)

    def visit_Compare(self, node: ast.Compare) -> Any:
        return self._comparison(node, is_test=False)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            return self.generic_visit(node)
        return self._call("negated", [self._test(node.operand)], node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if not (_is_operand(node.body) and _is_operand(node.orelse)):
            node.test = self._test(node.test)
            node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
            return node
        test = self._test(node.test)
        return self._call("choice", [test, self._operand(node.body), self._operand(node.orelse)], node)

    def _test(self, node: ast.expr) -> ast.expr:
        """Convert an expression of which only the truth matters."""
        if isinstance(node, ast.BoolOp):
            return self._logical(node, is_test=True)
        if isinstance(node, ast.Compare):
            return self._comparison(node, is_test=True)
        return cast(ast.expr, self.visit(node))

    def _logical(self, node: ast.BoolOp, *, is_test: bool) -> ast.expr:
        """Convert `and` and `or` of several operands, from the last one on."""
        if not all(map(_is_operand, node.values[1:])):
            visit = self._test if is_test else self.visit
            node.values = [visit(each) for each in node.values]
            return node
        name = "both" if isinstance(node.op, ast.And) else "either"
        return self._joined(name, node.values, node, is_test)

    def _joined(self, name: str, values: Sequence[ast.expr], node: ast.expr, is_test: bool) -> ast.expr:
        first = self._truth(values[0]) if is_test else self.visit(values[0])
        if len(values) == 1:
            return cast(ast.expr, first)
        self._depth += 1
        rest = self._joined(name, values[1:], node, is_test)
        self._depth -= 1
        return self._call(name, [first, _function_of(rest)], node)

    def _truth(self, node: ast.expr) -> ast.expr:
        """Convert an operand of a test, whose truth Python asks once."""
        converted = self._test(node)
        is_truth = isinstance(node, ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        return converted if is_truth else self._call("truth", [converted], node)

    def _comparison(self, node: ast.Compare, *, is_test: bool) -> ast.expr:
        """Convert a chain of comparisons: all but the first are made if the one before is true."""
        if len(node.ops) == 1 or not all(map(_is_operand, node.comparators)):
            return cast(ast.expr, self.generic_visit(node))
        first = self.visit(node.left)
        pairs: list[ast.expr] = []
        for operation, operand in zip(node.ops, node.comparators, strict=True):
            pair = [ast.Constant(OPERATORS[type(operation)]), self._operand(operand)]
            pairs.append(ast.Tuple(pair, ast.Load()))
        call = self._call("chain", [first, *pairs], node)
        if is_test:
            call.keywords = [located(ast.keyword("is_test", ast.Constant(True)), node)]
        return call

    # What replaces them

    def _operand(self, node: ast.expr) -> ast.Lambda:
        """Return a function without arguments that returns an operand."""
        self._depth += 1
        converted = self.visit(node)
        self._depth -= 1
        return _function_of(converted)

    def _function(
        self,
        name: str,
        like: ast.stmt | ast.expr,
        statements: Sequence[ast.stmt],
        names: _Names,
        parameters: Sequence[str] = (),
    ) -> ast.FunctionDef:
        """Return the function of a block of statements. names: gets the variables that they use."""
        if self._depth > DEEPEST:
            raise RecursionError
        self._names.append(_Names())
        self._depth += 1
        body = self._block(statements)
        self._depth -= 1
        used = self._names.pop()
        used.assigned |= self._scope.shared
        # Variables of this function that it assigns are not its own, but for flags that begin in it.
        around = used.assigned - used.own
        names.read |= used.read - used.own
        names.assigned |= around
        self._names[-1].read |= used.read - used.own
        self._names[-1].assigned |= around
        nonlocal_ = around & (self._scope.local | self._scope.outer) | set(filter(is_flag, around))
        global_ = around & self._scope.global_
        declared: list[ast.stmt] = [ast.Nonlocal(sorted(nonlocal_))] if nonlocal_ else []
        declared += [ast.Global(sorted(global_))] if global_ else []
        body = [*(located(each, like) for each in declared), *body]
        given = parameters_named(parameters)
        function: Any = ast.FunctionDef(name=name, args=given, body=body, decorator_list=[])
        function.type_params = []  # from Python 3.12 on
        return cast(ast.FunctionDef, located(function, like))

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        converted: list[ast.stmt] = []
        for statement in statements:
            made = self.visit(statement)
            converted += made if isinstance(made, list) else [made]
        return converted

    def _state(self, names: _Names) -> ast.expr:
        """Return the expression of the state: the variables of the function that a statement uses."""
        scope = self._scope
        assigned = sorted(
            name for name in names.assigned if name in scope.local | scope.outer or is_flag(name)
        )
        read = {name for name in names.read if name in scope.local or is_flag(name)} - {ITEM, *assigned}
        cells: list[ast.expr] = [ast.Name(name, ast.Load()) for name in (*assigned, *sorted(read))]
        constants: list[ast.expr] = [ast.Constant(scope.mangled(each)) for each in assigned]
        state = ast.Attribute(ast.Name(CONTROL, ast.Load()), "state", ast.Load())
        arguments = [_function_of(ast.Tuple(cells, ast.Load())), ast.Tuple(constants, ast.Load())]
        return ast.Call(state, arguments, [])

    def _call(self, name: str, arguments: Sequence[ast.expr], like: ast.expr | ast.stmt) -> ast.Call:
        self._calls_control = True
        method = ast.Attribute(ast.Name(CONTROL, ast.Load()), name, ast.Load())
        return cast(ast.Call, located(ast.Call(method, list(arguments), []), like))

    def _call_statement(
        self, name: str, arguments: Sequence[ast.expr], like: ast.expr | ast.stmt
    ) -> ast.stmt:
        return cast(ast.stmt, located(ast.Expr(self._call(name, arguments, like)), like))

    def _note_all(self, node: ast.AST) -> None:
        """Note the variables that a function or class inside may read, and those that it assigns."""
        names = self._names[-1]
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                names.read.add(each.id)
            elif isinstance(each, ast.Nonlocal):
                names.assigned.update({*each.names} & self._scope.local)


def _is_operand(node: ast.expr) -> bool:
    """Return whether an expression means the same in a function of its own."""
    return not any(isinstance(each, (ast.NamedExpr, ast.Lambda)) for each in ast.walk(node))


def _function_of(node: ast.expr) -> ast.Lambda:
    """Return a function without arguments that returns the value of an expression."""
    return ast.Lambda(parameters_named(vararg=OPERAND), node)

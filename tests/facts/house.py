"""Measures the product's source: what makes it long to read, and which modules import each other in a circle.

    python tests/facts/house.py [ROOT] [FIGURE]

prints the figures of a checkout as a table, or the lines that one of them counts, such as `forwarders`.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("meshrun", "runner", "jobs", "launch")
OURS = ("meshrun.runner", "meshrun.jobs", "meshrun.launch")
MOST_PARAMETERS = 8
MOST_FIELDS = 10

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")  # of a command line, in a text

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """`name` imported on `line`; early: when the module itself is imported, not in a function's call."""

    name: str
    line: int
    early: bool

    def of(self, *packages: str) -> bool:
        return any(f"{self.name}.".startswith(f"{package}.") for package in packages)

    @property
    def room(self) -> str:
        """The package's folder and the room, such as "runner.plan"; "" for what is not ours."""
        return ".".join(self.name.split(".")[1:3]) if self.of(*OURS) else ""


@dataclass(frozen=True)
class Source:
    path: str  # from the root, such as "runner/halo.py"
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The room, such as "runner.plan" or "runner.errors"; the package where there is no room."""
        return ".".join(self.module.split(".")[:2])

    def is_one_of(self, *patterns: str) -> bool:
        return any(fnmatch.fnmatch(self.path, pattern) for pattern in patterns)

    @cached_property
    def imports(self) -> list[Import]:
        return list(_imports(self.tree, early=True))


def _imports(node: ast.AST, early: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, early) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            package = "." * child.level + (child.module or "")
            yield from (Import(f"{package}.{alias.name}", child.lineno, early) for alias in child.names)
        elif isinstance(child, ast.Call) and called(child) == "import_module":
            names = [argument.value for argument in child.args if isinstance(argument, ast.Constant)]
            yield from (Import(str(name), child.lineno, early) for name in names)
        for_checker = isinstance(child, ast.If) and dotted(child.test) == "TYPE_CHECKING"
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or for_checker
        yield from _imports(child, early and not inner)


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def dotted(node: ast.AST) -> str:
    """Return a name such as "os.environ"; "" for what is no name. `ast.unparse` takes 20 times as long."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def read_sources(root: Path = ROOT) -> list[Source]:
    """Return the product's Python files."""
    return [
        Source(path.relative_to(root).as_posix(), path.read_text())
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if not path.is_relative_to(root / "meshrun" / "runner")
    ]


# Circles of imports: lazy imports and those for a type checker count, too.


def module_imports(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Return the modules that each module imports.

    The public names of `meshrun` are left out: they load lazily, and jobs import them as a user's do.
    """
    sources = [source for source in sources if not source.is_one_of("meshrun/*")]
    modules = {source.module for source in sources}
    graph = {}
    for source in sources:
        names = {found.name.removeprefix("meshrun.") for found in source.imports}
        imported = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[source.module] = imported & modules - {source.module}
    return graph


def room_imports(modules: Mapping[str, set[str]], depth: int = 2) -> dict[str, set[str]]:
    """Return the rooms that each room imports, from `module_imports`."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, imported in modules.items():
        room = _room(module, depth)
        rooms[room] |= {_room(name, depth) for name in imported} - {room}
    return rooms


def _room(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other."""
    # Only nodes that are left when the ends of the graph are taken off can be in a circle.
    rest = {node: set(after) for node, after in graph.items()}
    while ends := {node for node, after in rest.items() if not after & rest.keys()}:
        rest = {node: after - ends for node, after in rest.items() if node not in ends}
    reached = {node: _reached(node, rest) for node in rest}
    groups = {frozenset(other for other in reached[node] if node in reached[other]) for node in rest}
    return sorted(sorted(group) for group in groups if group)


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        after = graph.get(todo.pop(), set()) - seen
        seen |= after
        todo += after
    return seen


# What is counted: each yields a line and what stands there.


def functions(source: Source) -> Iterator[Function]:
    yield from (node for node in source.nodes if isinstance(node, Function))


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters but for `self` and `cls`."""
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, spec.vararg, *spec.kwonlyargs, spec.kwarg]
    return [each.arg for each in every if each and each.arg not in ("self", "cls")]


def long_signatures(source: Source) -> Iterator[tuple[int, str]]:
    """Functions with more than MOST_PARAMETERS parameters."""
    for function in functions(source):
        if (count := len(parameters(function))) > MOST_PARAMETERS:
            yield function.lineno, f"{function.name}: {count}"


def large_classes(source: Source) -> Iterator[tuple[int, str]]:
    """Classes with more than MOST_FIELDS fields: declared in the class, or set by its __init__."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and (count := len(_fields(node))) > MOST_FIELDS:
            yield node.lineno, f"{node.name}: {count}"


def _fields(node: ast.ClassDef) -> set[str]:
    names = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    }
    for method in node.body:
        if isinstance(method, Function) and method.name == "__init__":
            names |= {
                each.attr
                for each in ast.walk(method)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and dotted(each.value) == "self"
            }
    return names


def forwarders(source: Source) -> Iterator[tuple[int, str]]:
    """Undecorated functions that pass their own parameters, and nothing else, to one other function."""
    for function in functions(source):
        body = [line for line in function.body if not _is_text(line)]
        call = (
            getattr(body[0], "value", None)
            if len(body) == 1 and isinstance(body[0], (ast.Return, ast.Expr))
            else None
        )
        if function.decorator_list or function.name.startswith("__") or not isinstance(call, ast.Call):
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = [dotted(value.value if isinstance(value, ast.Starred) else value) for value in given]
        if dotted(call.func) and set(names) <= {"self", "cls", *parameters(function)}:
            yield function.lineno, f"{function.name} -> {dotted(call.func)}"


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def untyped_results(source: Source) -> Iterator[tuple[int, str]]:
    """Functions that return `Record` or `dict[str, Any]`."""
    for function in functions(source):
        kind = ast.unparse(function.returns) if function.returns else ""
        if kind.split(" | ")[0] in ("Record", "dict[str, Any]", "dict[str, object]"):
            yield function.lineno, f"{function.name}: {kind}"


def pops(source: Source) -> Iterator[tuple[int, str]]:
    """Keys that are taken out of a mapping by `pop`."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "pop"
            and node.args
        ):
            key = node.args[0]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield node.lineno, ast.unparse(node)


def option_texts(source: Source) -> Iterator[tuple[int, str]]:
    """Texts of runner/, outside the room of options, that spell an option of the command line."""
    if not source.is_one_of("runner/*") or source.is_one_of("runner/spelling.py", "runner/options/*"):
        return
    docs = {
        id(node.body[0].value)
        for node in source.nodes
        if isinstance(node, (ast.Module, ast.ClassDef, Function)) and node.body and _is_text(node.body[0])
    }
    for node in source.nodes:
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(text, str) and OPTION.search(text):
            yield node.lineno, text[:70]


def single_protocols(sources: Iterable[Source]) -> list[str]:
    """Return the protocols that only one class or module of the product implements.

    A class implements a protocol that is its base, or whose methods and fields it and its bases have. It
    counts once, with the classes derived from it. Functions of a module may implement a protocol, too.
    Protocols of one `__call__` are left out: any function may implement these.
    """
    sources = list(sources)
    classes = {
        node.name: node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)
    }
    modules = {source.module: _bound(source.tree) for source in sources}
    found = []
    for name, node in classes.items():
        wanted = _bound(node) - {"__call__"}
        if "Protocol" not in _bases(node) or not wanted:
            continue
        others = {
            other
            for other, each in classes.items()
            if other != name
            and "Protocol" not in _bases(each)
            and (wanted <= _members(other, classes) or name in _bases(each))
        }
        others = {other for other in others if not others.intersection(_bases(classes[other]))}
        others |= {module for module, names in modules.items() if wanted <= names}
        if len(others) == 1:
            found.append(f"{name} <- {others.pop()}")
    return found


def _bases(node: ast.ClassDef) -> list[str]:
    return [dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]


def _members(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    node = classes[name]
    inherited = [_members(base, classes) for base in _bases(node) if base in classes and base != name]
    return _bound(node).union(_fields(node), *inherited)


def _bound(node: ast.Module | ast.ClassDef) -> set[str]:
    """Return the names of functions and fields that a class's or a module's body binds."""
    names = set()
    for line in node.body:
        if isinstance(line, Function):
            names.add(line.name)
        elif isinstance(line, ast.AnnAssign):
            names.add(dotted(line.target))
        elif isinstance(line, ast.Assign):
            names |= {dotted(target) for target in line.targets}
    return names


def local_names(sources: Iterable[Source]) -> Counter[str]:
    """Return how often each name is bound in functions."""
    return Counter(
        name
        for source in sources
        for function in functions(source)
        for name in [
            *parameters(function),
            *(
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ),
        ]
    )


OF_A_FILE = (long_signatures, large_classes, forwarders, untyped_results, pops, option_texts)


def figures(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Return the places that each figure counts."""
    listed = {
        rule.__name__: [f"{source.path}:{line}: {text}" for source in sources for line, text in rule(source)]
        for rule in OF_A_FILE
    }
    modules = module_imports(sources)
    listed["single_protocols"] = single_protocols(sources)
    listed["circles"] = [" ".join(group) for group in circles(modules)]
    listed["room_circles"] = [" ".join(group) for group in circles(room_imports(modules))]
    return listed


def main(root: str = str(ROOT), figure: str = "") -> None:
    sources = read_sources(Path(root))
    product = figures(sources)
    if figure:
        print("\n".join(product[figure]))
        return
    print("| figure | runner, launch | product |\n| --- | --- | --- |")
    for name, listed in figures([each for each in sources if each.is_one_of("runner/*", "launch/*")]).items():
        print(f"| {name} | {len(listed)} | {len(product[name])} |")
    lines: Counter[str] = Counter()
    for source in sources:
        lines[source.room] += source.text.count("\n")
    print("\n| room | lines |\n| --- | --- |")
    print("\n".join(f"| {room} | {count} |" for room, count in sorted(lines.items())))
    print(f"| all | {lines.total()} |\n\n| local name | bindings |\n| --- | --- |")
    print("\n".join(f"| {name} | {count} |" for name, count in local_names(sources).most_common(8)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The rules of the house, checked on the source: who may import what, and what no module contains."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import runner

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "jobs", "launch")

# Inside runner/, from the top down: a module may import those in lower lines, and its own package.
LAYERS = (
    ("calibrate", "selftest"),
    ("doctor", "main"),
    ("rank_process",),
    ("declare",),  # a declared job runs itself: `edges.run(...)` and `edges(array)`
    ("apply",),
    ("execute", "find", "heartbeat", "inspection", "mutations"),
    ("batch_job", "map_job"),
    ("options", "rank_table", "record_builder"),
    ("forecast_record",),
    ("check", "store", "stream"),
    ("pipeline",),
    ("compare", "result_type"),
    ("load", "reduce"),
    ("inputs",),
    ("failure",),
    ("exchange", "transaction"),
    ("storage", "world"),
    ("binding", "preflight"),
    ("clock", "deal", "heartbeat_process", "preflight_consistency", "preflight_host", "watchdog"),
    ("problem",),
    ("counters", "survey"),
    ("comm.mpi_collectives", "comm.nccl_arrays", "comm.nccl_collectives", "comm.simulated_collectives"),
    ("comm.simulated_fleet",),
    ("comm.simulated_noise", "comm.simulated_routes"),
    ("comm.simulated_parts",),
    ("comm.simulated_spec",),
    ("comm.simulated_faults",),
    ("comm.host", "comm.mpi", "comm.nccl_calls", "comm.simulated", "comm.staged"),
    ("preload",),
    ("comm.nccl",),
    ("backend.cuda_blas", "backend.cuda_box", "backend.cuda_pools"),
    (
        "backend.cpu",
        "backend.cuda",
    ),
    ("backend.box", "backend.cuda_files", "backend.cuda_lanes", "backend.pools"),
    ("forecast",),  # what a run will do and take: decided without ranks, files or devices
    ("chunking", "rates"),
    ("work",),
    ("declaration", "here"),
    ("chunks", "philox", "stream.options", "window"),
    ("backend",),  # the protocols
    ("comm",),
    ("boxes", "halo", "signature"),
    (
        "counters_gpu",
        "counters_network",
        "counters_processors",
        "partition",
        "survey_gpu",
        "survey_network",
        "watch_progress",
    ),
    ("journal", "launcher", "links", "run_status", "termination", "watch_channel", "watch_report"),
    ("lock", "report"),
    ("files", "nvml"),
    ("errors", "phases", "spans", "sysfs"),
)

CUPY = ("runner/backend/cuda*.py", "runner/comm/nccl*.py")
MPI4PY = ("runner/comm/mpi*.py", "runner/world*.py")
ENVIRONMENT = ("runner/launcher.py", "runner/world.py", "runner/comm/mpi.py", "launch/*.py")
COSTLY = ("runner", "jobs", "numpy", "cupy", "mpi4py", "PIL", "rich", "jinja2", "prometheus_client")


@dataclass(frozen=True)
class Import:
    """`name` imported on `line`; early: when the module itself is imported, not in a function's call."""

    name: str
    line: int
    early: bool

    def of(self, *packages: str) -> bool:
        return self.name.split(".")[0] in packages


@dataclass(frozen=True)
class Source:
    path: str  # from the root, such as "runner/halo.py"
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

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
        elif isinstance(child, ast.Call) and _called(child) == "import_module":
            names = [argument.value for argument in child.args if isinstance(argument, ast.Constant)]
            yield from (Import(str(name), child.lineno, early) for name in names)
        for_checker = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or for_checker
        yield from _imports(child, early and not inner)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


# Each rule: a source -> what it does wrong.


def cupy_has_two_homes(source: Source) -> Iterator[str]:
    if not source.is_one_of(*CUPY):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("cupy", "cupyx", "cupy_backends"))


def mpi_has_one_home(source: Source) -> Iterator[str]:
    if not source.is_one_of(*MPI4PY):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("mpi4py"))


def nccl_has_one_home(source: Source) -> Iterator[str]:
    if source.path != "runner/comm/nccl.py":
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("nccl"))


def nvml_has_one_home(source: Source) -> Iterator[str]:
    if source.path != "runner/nvml.py":
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("pynvml"))


def the_runner_knows_neither_jobs_nor_the_door(source: Source) -> Iterator[str]:
    if source.is_one_of("runner/*"):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("jobs", "launch"))


def jobs_use_public_names(source: Source) -> Iterator[str]:
    if not source.is_one_of("jobs/*"):
        return
    for found in source.imports:
        package, _, rest = found.name.partition(".")
        if package == "launch" or (package == "runner" and rest and rest not in runner.__all__):
            yield f"{found.line}: {found.name}"
    for node in ast.walk(source.tree):
        is_runner = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "runner"
        if is_runner and isinstance(node, ast.Attribute) and node.attr not in runner.__all__:
            yield f"{node.lineno}: runner.{node.attr}"


def the_door_opens_at_once(source: Source) -> Iterator[str]:
    if source.is_one_of("launch/*"):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.early and i.of(*COSTLY))


def layer(name: str) -> tuple[int, str]:
    """Row and entry of LAYERS for a dotted name below runner, the longest entry that fits."""
    fits = [
        (len(entry), row, entry)
        for row, entries in enumerate(LAYERS)
        for entry in entries
        if f"{name}.".startswith(f"{entry}.")
    ]
    _, row, entry = max(fits, default=(0, -1, ""))
    return row, entry


def lower_layers_know_no_upper_ones(source: Source) -> Iterator[str]:
    if not source.is_one_of("runner/*") or source.path == "runner/__init__.py":
        return
    row, entry = layer(source.module.removeprefix("runner."))
    if row < 0:
        yield "1: the module has no place in LAYERS"
    for found in source.imports:
        if found.of("runner") or found.name.startswith("."):
            other_row, other = layer(found.name.removeprefix("runner."))
            if other_row < 0 or not (other_row > row or other == entry):
                yield f"{found.line}: {found.name}"


def the_environment_is_read_in_few_places(source: Source) -> Iterator[str]:
    if source.is_one_of(*ENVIRONMENT):
        return
    names = ("os.environ", "os.environb", "os.getenv", "os.putenv", "sys.argv")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in names:
            yield f"{node.lineno}: {ast.unparse(node)}"
    yield from (f"{i.line}: {i.name}" for i in source.imports if i.name in names)


def exceptions_are_named(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(kind is None or ast.unparse(kind) == "Exception" for kind in kinds):
                yield f"{node.lineno}: except {'' if node.type is None else ast.unparse(node.type)}"


def kernels_are_files(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            yield f"{node.lineno}: CUDA in a string"


def checkers_are_not_silenced(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        _, _, comment = line.partition("#")
        if any(word in comment for word in ("noqa", "type: ignore", "TODO", "FIXME", "XXX")):
            yield f"{number}: {line.strip()}"


RULES: dict[Callable[[Source], Iterator[str]], list[tuple[str, str]]] = {
    # with samples that break them: a rule that finds nothing must be able to
    cupy_has_two_homes: [
        ("jobs/a.py", "import cupy"),
        ("runner/world.py", "def f():\n    from cupy.cuda import nccl"),
        ("runner/backend/__init__.py", "import importlib\nimportlib.import_module('cupy')"),
    ],
    mpi_has_one_home: [("runner/execute.py", "def f():\n    from mpi4py import MPI")],
    nccl_has_one_home: [
        ("runner/comm/nccl_calls.py", "def f():\n    from nccl.bindings import nccl"),
        ("jobs/a.py", "import nccl.core"),
    ],
    nvml_has_one_home: [("runner/links.py", "def f():\n    import pynvml")],
    the_runner_knows_neither_jobs_nor_the_door: [
        ("runner/find.py", "import jobs.laplacian"),
        ("runner/report/summary.py", "def f():\n    from launch import cli"),
    ],
    jobs_use_public_names: [
        ("jobs/a.py", "from runner.halo import runs"),
        ("jobs/a.py", "from runner import halo"),
        ("jobs/a.py", "import runner.halo"),
        ("jobs/a.py", "import runner\nrunner.halo.runs()"),
        ("jobs/a.py", "from launch import cli"),
    ],
    the_door_opens_at_once: [
        ("launch/cli.py", "import numpy as np"),
        ("launch/cli.py", "try:\n    from runner.errors import UserError\nfinally:\n    pass"),
        ("launch/cli.py", "class A:\n    import mpi4py"),
    ],
    lower_layers_know_no_upper_ones: [
        ("runner/partition.py", "from runner.halo import runs"),
        ("runner/halo.py", "def f():\n    import runner.execute"),
        ("runner/comm/mpi.py", "from runner import world"),
        ("runner/comm/__init__.py", "from runner.comm.mpi import MpiComm"),
        ("runner/declaration.py", "def f():\n    from runner.execute import run"),
        ("runner/halo.py", "from . import partition"),
        ("runner/halo.py", "from runner import map_blocks"),
        ("runner/brand_new.py", "import os"),
    ],
    the_environment_is_read_in_few_places: [
        ("runner/halo.py", "import os\nos.environ['A']"),
        ("jobs/a.py", "from os import environ"),
        ("runner/execute.py", "import sys\nsys.argv[1]"),
    ],
    exceptions_are_named: [
        ("jobs/a.py", "try:\n    f()\nexcept:\n    pass"),
        ("jobs/a.py", "try:\n    f()\nexcept (OSError, Exception):\n    pass"),
    ],
    kernels_are_files: [("jobs/a.py", "CODE = '''\n__global__ void f() {}'''")],
    checkers_are_not_silenced: [
        ("jobs/a.py", "x = 1  # type: ignore[assignment]"),
        ("jobs/a.py", "# TODO: more"),
    ],
}

SOURCES = [
    Source(path.relative_to(ROOT).as_posix(), path.read_text())
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
]


def test_the_sources_are_found() -> None:
    assert {"runner/halo.py", "runner/comm/mpi.py"} <= {source.path for source in SOURCES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Source], Iterator[str]]) -> None:
    assert [f"{source.path}:{fault}" for source in SOURCES for fault in rule(source)] == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, path, text) for rule, samples in RULES.items() for path, text in samples],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_rule_finds_what_breaks_it(rule: Callable[[Source], Iterator[str]], path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


def test_every_layer_exists() -> None:
    for entries in LAYERS:
        for entry in entries:
            place = ROOT / "runner" / entry.replace(".", "/")
            assert place.with_suffix(".py").exists() or (place / "__init__.py").exists(), entry

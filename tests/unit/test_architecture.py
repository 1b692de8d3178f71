"""The rules of the house, checked on the source: who may import what, and what no module contains."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from house import PACKAGES, ROOT, Source, dotted, figures, read_sources

from meshrun.launch.cli.main import command
from meshrun.runner.job.discover import find, names
from meshrun.runner.options.plan_options import plan_rows
from meshrun.runner.options.run_options import RANKS, run_rows

# From the ground up: a module may import its own room and the rooms of lower floors.
FLOORS = (
    (
        "runner.spelling",
        "runner.errors",
        "runner.region",
        "runner.files",
        "runner.processes",
        "runner.lock",
    ),
    ("runner.options",),
    ("runner.recorder",),
    ("runner.system", "runner.job", "runner.storage", "runner.report"),
    ("runner.device", "runner.plan"),
    ("runner.comm",),
    ("runner.world",),
    ("runner.compiler",),
    ("runner.arrays",),
    ("runner.transforms",),
    ("runner.programs",),
    ("runner.maps",),
    ("runner.steps",),
    ("runner.forecast",),
    ("runner.run",),
    ("jobs.kernels",),
    ("jobs.measure",),
    ("jobs.filters", "jobs.airflow", "jobs.linalg", "jobs.transforms", "jobs.bench", "jobs.validate"),
)
# Imports of upper rooms, or of what a room says it knows nothing of, that are to go.
OWED: set[tuple[str, str]] = set()
# What the words of rooms' paragraphs mean: "It knows no ranks" has meshrun.runner.world in MAY_NOT_IMPORT.
KNOWN_AS = {
    "MPI": ("mpi4py", "meshrun.runner.comm"),
    "array files": ("meshrun.runner.storage",),
    "journals": ("meshrun.runner.storage.journal",),
    "transactions": ("meshrun.runner.storage.transaction",),
    "devices": ("meshrun.runner.device",),
    "ranks": ("meshrun.runner.world",),
    "jobs": ("meshrun.runner.job",),
    "plans": ("meshrun.runner.plan",),
    "the compiler": ("meshrun.runner.compiler",),
    "distributed arrays": ("meshrun.runner.arrays",),
    "halos": ("meshrun.runner.arrays.halo",),
    "maps": ("meshrun.runner.maps",),
    "time steps": ("meshrun.runner.steps",),
    "records": ("meshrun.runner.run",),
    "benchmarks": ("meshrun.jobs.bench",),
    "bench's collectives": ("meshrun.jobs.bench.collectives",),
    "sessions": ("meshrun.jobs.bench.collectives.session",),
    "copies": ("meshrun.jobs.bench.copy",),
    "lessons": ("meshrun.jobs.bench.lessons",),
    "validation": ("meshrun.jobs.validate",),
    "probes": ("meshrun.jobs.validate.probe",),
    "measurements": ("meshrun.jobs.validate.measurements",),
    "findings": ("meshrun.jobs.validate.localize",),
    "the command line": ("meshrun.launch.cli", "click"),
    "Slurm": ("meshrun.launch.slurm",),
    "Kubernetes": ("meshrun.launch.kubernetes",),
    "launchers": ("meshrun.launch.mpi", "meshrun.launch.slurm", "meshrun.launch.kubernetes"),
}
# Options of srun, mpirun, docker, nvidia-smi, compilers, pip and others, which messages and commands name.
OF_OTHER_PROGRAMS = (
    *("mpi", "nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gpus-per-task", "cpus-per-task"),
    *("cpu-bind", "export"),
    *("hostfile", "bind-to", "shm-size", "ipc", "ulimit", "status", "query-gpu", "format"),
    *("fmad", "param", "version", "with-cuda", "all", "no-binary", "mpi-lib-version"),
)
COMMANDS = ("jobs/bench/*", "jobs/validate/*", "jobs/measure/*")  # which programs do not call
MOST_FILES = 14  # of a room; more are two rooms
GROUND = FLOORS[0]  # files, not rooms: each may import those before it

# Inside launch/, likewise: a module may import what is in its own room, and the rooms in lower lines.
LAUNCH_ROOMS = (
    ("cli",),
    ("slurm", "kubernetes"),
    ("mpi",),
    ("supervise",),
    ("spec", "settings", "completion", "help"),
    ("host_list",),
)

CUPY = ("runner/device/*.py", "runner/comm/*.py")
MPI4PY = ("runner/comm/*.py", "runner/world/*.py")
ENVIRONMENT = ("runner/system/launcher.py", "runner/world/*.py", "runner/comm/mpi.py", "launch/*.py")
COSTLY = (
    "meshrun.runner",
    "meshrun.jobs",
    "numpy",
    "cupy",
    "mpi4py",
    "PIL",
    "rich",
    "jinja2",
    "prometheus_client",
)


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
    if source.path != "runner/system/nvml.py":
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("pynvml"))


def the_runner_knows_neither_jobs_nor_the_door(source: Source) -> Iterator[str]:
    if source.is_one_of("runner/*"):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.of("meshrun.jobs", "meshrun.launch"))


def jobs_know_rooms(source: Source) -> Iterator[str]:
    """Jobs import the runner's rooms, or meshrun as a user does; neither the door nor `runner` itself."""
    if not source.is_one_of("jobs/*"):
        return
    for found in source.imports:
        known = any(found.room in rooms for rooms in FLOORS)
        if found.of("meshrun.launch") or (found.of("meshrun.runner") and not known):
            yield f"{found.line}: {found.name}"


def the_door_opens_at_once(source: Source) -> Iterator[str]:
    if source.is_one_of("launch/*"):
        yield from (f"{i.line}: {i.name}" for i in source.imports if i.early and i.of(*COSTLY))


def launch_room(name: str) -> tuple[int, str]:
    """Row and name of the room in launch/ that a dotted name is in; -1 where there is none."""
    room = name.split(".")[1] if "." in name else ""
    return next((row for row, rooms in enumerate(LAUNCH_ROOMS) if room in rooms), -1), room


def lower_rooms_of_launch_know_no_upper_ones(source: Source) -> Iterator[str]:
    if not source.is_one_of("launch/*") or source.path == "launch/__init__.py":
        return
    row, room = launch_room(source.module)
    if row < 0:
        yield "1: the module is in no room of LAUNCH_ROOMS"
    for found in source.imports:
        if found.of("meshrun.launch") or found.name.startswith("."):
            other_row, other = launch_room(found.name.removeprefix("meshrun."))
            if other_row < 0 or not (other_row > row or other == room):
                yield f"{found.line}: {found.name}"


def floor(name: str) -> tuple[int, str]:
    """The floor and room of a dotted name; -1 where it has none."""
    files = (file for file in GROUND if f"{name}.".startswith(f"{file}."))
    room = next(files, ".".join(name.split(".")[:2]))
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), -1), room


def imports_go_down(source: Source) -> Iterator[str]:
    if not source.is_one_of("runner/*", "jobs/*") or source.path in (
        "runner/__init__.py",
        "jobs/__init__.py",
    ):
        return
    here, room = floor(source.module)
    if here < 0:
        yield "1: the module is in no room of FLOORS"
    for found in source.imports:
        if found.name.startswith("."):
            yield f"{found.line}: {found.name}"
        elif found.of("meshrun.runner", "meshrun.jobs"):
            other, other_room = floor(found.name.removeprefix("meshrun."))
            before = room in GROUND and other_room in GROUND[: GROUND.index(room)]
            owed = (source.path, found.name) in OWED
            if other < 0 or not (other < here or other_room == room or before or owed):
                yield f"{found.line}: {found.name}"


def is_room(source: Source) -> bool:
    return source.path.endswith("/__init__.py") and source.path.count("/") >= 2


def prohibitions(path: str) -> tuple[str, ...]:
    """Return what the rooms that a file is in may not import: MAY_NOT_IMPORT of each folder's __init__."""
    folders = [ROOT / folder / "__init__.py" for folder in Path(path).parents if folder.name]
    return tuple(name for folder in folders if folder.is_file() for name in declared(folder.read_text()))


@functools.cache
def declared(text: str) -> tuple[str, ...]:
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and dotted(line.targets[0]) == "MAY_NOT_IMPORT":
            return tuple(ast.literal_eval(line.value))
    return ()


def rooms_keep_their_prohibitions(source: Source) -> Iterator[str]:
    forbidden = prohibitions(source.path)
    for found in source.imports:
        if found.of(*forbidden) and (source.path, found.name) not in OWED:
            yield f"{found.line}: {found.name}"


def sentences_of_rooms_are_their_prohibitions(source: Source) -> Iterator[str]:
    """A room's paragraph says "knows no A" or "knows neither A, B nor C" of what it may not import, only."""
    if not is_room(source):
        return
    doc = " ".join((ast.get_docstring(source.tree) or "").split())
    terms = [
        term
        for listed in re.findall(r"\bknows? (?:no|neither) (.+?)(?:[.;:]|, (?:and|which) )", doc)
        for term in re.split(r", | nor ", listed)
    ]
    unknown = [term for term in terms if term not in KNOWN_AS]
    if unknown or re.search(r"not know|knows? nothing|not import", doc):
        yield f"1: say it by `knows no` or `knows neither`, in words of KNOWN_AS: {unknown}"
    elif sorted(name for term in terms for name in KNOWN_AS[term]) != sorted(declared(source.text)):
        yield f"1: MAY_NOT_IMPORT is not what the paragraph says: {terms}"


def rooms_say_what_they_are_for(source: Source) -> Iterator[str]:
    is_lesson = source.is_one_of("jobs/bench/lessons/*/__init__.py")  # its `lesson` says what it is for
    if is_room(source) and not is_lesson and len(ast.get_docstring(source.tree) or "") < 100:
        yield "1: a room's docstring says what it is for, what it knows nothing of, which names others use"


def the_environment_is_read_in_few_places(source: Source) -> Iterator[str]:
    if source.is_one_of(*ENVIRONMENT):
        return
    names = ("os.environ", "os.environb", "os.getenv", "os.putenv", "sys.argv")
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and dotted(node) in names:
            yield f"{node.lineno}: {dotted(node)}"
    yield from (f"{i.line}: {i.name}" for i in source.imports if i.name in names)


def exceptions_are_named(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(kind is None or ast.unparse(kind) == "Exception" for kind in kinds):
                yield f"{node.lineno}: except {'' if node.type is None else ast.unparse(node.type)}"


def options_are_spelled_for_their_caller(source: Source) -> Iterator[str]:
    """`option("chunk_bytes")`, which is a keyword in Python, instead of "--chunk-bytes", also in pieces."""
    if source.is_one_of("runner/*", "jobs/*") and not source.is_one_of(
        "runner/spelling.py", "runner/options/*", *COMMANDS
    ):
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*|\Z)", node.value):
                    if flag not in OF_OTHER_PROGRAMS:
                        yield f"{node.lineno}: --{flag}"


def kernels_are_files(source: Source) -> Iterator[str]:
    for node in source.nodes:
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
        ("runner/world/world.py", "def f():\n    from cupy.cuda import nccl"),
        ("runner/plan/halo.py", "import importlib\nimportlib.import_module('cupy')"),
    ],
    mpi_has_one_home: [("runner/run/execute.py", "def f():\n    from mpi4py import MPI")],
    nccl_has_one_home: [
        ("runner/comm/collectives/nccl_calls.py", "def f():\n    from nccl.bindings import nccl"),
        ("jobs/a.py", "import nccl.core"),
    ],
    nvml_has_one_home: [("runner/links.py", "def f():\n    import pynvml")],
    the_runner_knows_neither_jobs_nor_the_door: [
        ("runner/job/discover.py", "import meshrun.jobs.laplacian"),
        ("runner/report/summary.py", "def f():\n    from meshrun.launch import cli"),
    ],
    jobs_know_rooms: [
        ("jobs/filters/a.py", "from meshrun.runner import map_blocks"),
        ("jobs/filters/a.py", "import meshrun.runner"),
        ("jobs/filters/a.py", "from meshrun.launch import cli"),
    ],
    the_door_opens_at_once: [
        ("launch/cli/main.py", "import numpy as np"),
        ("launch/cli/main.py", "try:\n    from meshrun.runner.errors import UserError\nfinally:\n    pass"),
        ("launch/cli/main.py", "class A:\n    import mpi4py"),
    ],
    lower_rooms_of_launch_know_no_upper_ones: [
        ("launch/mpi/local.py", "def f():\n    from meshrun.launch.cli.plugins import conclude"),
        ("launch/mpi/local.py", "from meshrun.launch.slurm import job"),
        ("launch/kubernetes/job.py", "import meshrun.launch.slurm.job"),
        ("launch/supervise/judge.py", "from meshrun.launch import mpi"),
        ("launch/spec.py", "from .mpi import launcher"),
        ("launch/brand_new.py", "import os"),
    ],
    imports_go_down: [
        ("runner/plan/grid.py", "from meshrun.runner.world.world import World"),
        ("runner/plan/halo.py", "def f():\n    import meshrun.runner.run.execute"),
        ("runner/plan/halo.py", "from meshrun.runner.device import api"),
        ("runner/comm/mpi.py", "from meshrun.runner import world"),
        ("runner/plan/halo.py", "from . import grid"),
        ("runner/plan/halo.py", "from meshrun.runner import map_blocks"),
        ("runner/errors.py", "from meshrun.runner.files import write_file"),
        ("runner/brand_new.py", "import os"),
        ("jobs/measure/a.py", "from meshrun.jobs.bench import cli"),
        ("jobs/validate/a.py", "from meshrun.jobs.bench.copy import cases"),
    ],
    rooms_keep_their_prohibitions: [
        ("runner/plan/halo.py", "def f():\n    from meshrun.runner.arrays import load"),
        ("runner/storage/formats/tiff/sink.py", "import meshrun.runner.storage.journal"),
        ("launch/slurm/job.py", "if TYPE_CHECKING:\n    from meshrun.launch.kubernetes import pods"),
    ],
    sentences_of_rooms_are_their_prohibitions: [
        (
            "runner/plan/__init__.py",
            '"""Plans. It knows neither ranks nor MPI."""\nMAY_NOT_IMPORT = ("mpi4py",)',
        ),
        ("runner/plan/__init__.py", '"""Plans."""\nMAY_NOT_IMPORT = ("mpi4py",)'),
        ("runner/plan/__init__.py", '"""Plans. It may not know ranks."""'),
        ("runner/plan/__init__.py", '"""Plans. It knows no people."""'),
    ],
    rooms_say_what_they_are_for: [
        ("runner/plan/__init__.py", '"""Plans."""'),
        ("runner/storage/formats/__init__.py", '"""Formats."""'),
    ],
    the_environment_is_read_in_few_places: [
        ("runner/plan/halo.py", "import os\nos.environ['A']"),
        ("jobs/a.py", "from os import environ"),
        ("runner/run/execute.py", "import sys\nsys.argv[1]"),
    ],
    exceptions_are_named: [
        ("jobs/a.py", "try:\n    f()\nexcept:\n    pass"),
        ("jobs/a.py", "try:\n    f()\nexcept (OSError, Exception):\n    pass"),
    ],
    options_are_spelled_for_their_caller: [
        ("runner/plan/grid.py", "HINT = 'another --grid'"),
        ("runner/plan/grid.py", "def f(n):\n    return f'({n}, --chunk-bytes {n})'"),
        ("runner/plan/grid.py", "def f(name):\n    return f'--{name} is less than 1'"),
        ("runner/plan/grid.py", "def f(name):\n    return '--' + name"),
        ("jobs/filters/heat.py", "FLAGS = {'--dt': 1}"),
        ("runner/run/execute.py", 'def f():\n    """Read --json."""'),
    ],
    kernels_are_files: [("jobs/a.py", "CODE = '''\n__global__ void f() {}'''")],
    checkers_are_not_silenced: [
        ("jobs/a.py", "x = 1  # type: ignore[assignment]"),
        ("jobs/a.py", "# TODO: more"),
    ],
}

SOURCES = read_sources()
# Of what the house may have at most. A limit only goes down: when its figure falls, it follows.
LIMITS = {
    "long_signatures": 10,
    "large_classes": 20,
    "forwarders": 54,
    "untyped_results": 75,
    "pops": 5,
    "option_texts": 25,
    "single_protocols": 2,
    "circles": 0,
    "room_circles": 0,
}
OF_THE_PRODUCT = ("single_protocols", "circles", "room_circles")  # the others are of runner/ and launch/
FIGURES = figures([source for source in SOURCES if source.is_one_of("runner/*", "launch/*")]) | {
    name: listed for name, listed in figures(SOURCES).items() if name in OF_THE_PRODUCT
}


def test_the_sources_are_found() -> None:
    assert {"runner/plan/halo.py", "runner/comm/mpi.py"} <= {source.path for source in SOURCES}


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


def test_what_is_owed_is_still_there() -> None:
    assert not OWED - {(source.path, found.name) for source in SOURCES for found in source.imports}


@pytest.mark.parametrize("figure", LIMITS)
def test_the_house_does_not_grow(figure: str) -> None:
    assert len(FIGURES[figure]) <= LIMITS[figure], "\n".join(FIGURES[figure])


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        ("long_signatures", "class A:\n    def f(self, a, b, c, /, d, e, f, *g, h, **i): ..."),
        ("large_classes", "class A:\n    " + "\n    ".join(f"{letter}: int" for letter in "abcdefghijk")),
        (
            "large_classes",
            "class A:\n    def __init__(self):\n        self." + " = self.".join("abcdefghijk") + " = 0",
        ),
        ("forwarders", 'def f(a, *b):\n    """Text."""\n    return g(*b, c=a)'),
        ("forwarders", "class A:\n    def f(self, a):\n        self.inner.g(a)"),
        ("untyped_results", "def f() -> dict[str, Any] | None: ..."),
        ("untyped_results", "def f() -> Record: ..."),
        ("pops", "record.pop('a', None)"),
        ("option_texts", "f'{a}: give --all'"),
        ("single_protocols", "class A(Protocol):\n    b: int\nclass B:\n    b = 0"),
        (
            "single_protocols",
            "class A(Protocol[T]):\n    def f(self): ...\nclass B:\n    def f(self): ...\nclass C(B): ...",
        ),
        ("circles", "def f():\n    from meshrun.runner.plan import grid"),
        ("room_circles", "if TYPE_CHECKING:\n    from meshrun.runner.world.world import World"),
    ],
)
def test_the_figure_counts_what_it_names(figure: str, text: str) -> None:
    others = [
        Source("runner/plan/grid.py", "import meshrun.runner.plan.halo"),
        Source("runner/world/world.py", "from meshrun.runner.plan.grid import Grid"),
    ]
    assert figures([*others, Source("runner/plan/halo.py", "")])[figure] == []
    assert len(figures([*others, Source("runner/plan/halo.py", text)])[figure]) == 1


def test_every_room_exists() -> None:
    for room in (room for rooms in FLOORS for room in rooms):
        place = ROOT / room.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__init__.py").exists(), room


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_no_room_has_too_many_files(package: str) -> None:
    rooms = Counter(path.parent for path in (ROOT / package).rglob("*.py"))
    assert rooms
    assert not {room.as_posix(): count for room, count in rooms.items() if count > MOST_FILES}


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.path)
    assert len(places) > 500
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_every_room_of_launch_exists() -> None:
    rooms = {
        path.stem for path in (ROOT / "launch").iterdir() if path.stem not in ("__init__", "__pycache__")
    }
    assert rooms == {room for rooms in LAUNCH_ROOMS for room in rooms}


def _names_of(module: Path) -> set[str]:
    """Return the names that a module's file binds, in whatever block."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def _not_there(text: str) -> list[str]:
    """Return what a program imports from the project's packages and does not exist."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in PACKAGES:
            continue
        place = ROOT / str(node.module).replace(".", "/")
        file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        names = _names_of(file) if file.is_file() else set()
        found += [
            f"{node.module}.{alias.name}"
            for alias in node.names
            if alias.name not in names
            and not (place / f"{alias.name}.py").is_file()
            and not (place / alias.name).is_dir()
        ]
    return found


def test_what_needs_a_gpu_imports_what_exists() -> None:
    """No import of these files is executed here, and mypy does not read them."""
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/gpu/*.py")]
    assert len(files) > 50
    assert not {path.name: names for path in files if (names := _not_there(path.read_text()))}
    assert _not_there("from meshrun.runner.errors import UserError, Nothing") == [
        "meshrun.runner.errors.Nothing"
    ]
    assert _not_there("from runner.nowhere import a") == ["runner.nowhere.a"]


def _options_of(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the names of a command's options and of its subcommands', a job's parameters by its own names."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _options_of(command.get_command(context, name) or click.Command(name), context)
    for parameter in command.params:
        yield from (flag.lstrip("-").replace("-", "_") for flag in parameter.opts)


def test_options_in_messages_exist() -> None:
    known = {*_options_of(command, click.Context(command))}
    keywords = {name for row in (*run_rows(), RANKS, *plan_rows()) for name in row.names}
    keywords |= {parameter.name for name in names() for parameter in find(name).parameters}
    spelled = [
        (f"{source.path}:{node.lineno}", node.func.id, node.args[0].value)
        for source in SOURCES
        if any(found.of("meshrun.runner.spelling") for found in source.imports)
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("option", "command_option")
        and isinstance(node.args[0], ast.Constant)
    ]
    assert len(spelled) > 200
    assert not [
        row for row in spelled if row[2] not in (keywords if row[1] == "option" else known - keywords)
    ]

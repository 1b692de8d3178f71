"""Whether a task's function becomes one kernel, and what is said if it does not. Results stay the same."""

from __future__ import annotations

import functools
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from step_runs import PAD

import meshrun
from meshrun.launch.cli.main import main
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler import decide as fusing
from meshrun.runner.compiler import inferred_halo
from meshrun.runner.compiler.cpp import host
from meshrun.runner.compiler.cuda.steps.layout import Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.compiler.decide import Fusion, fused_alone
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.device.api import Device
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.halo import normalize
from meshrun.runner.plan.task import halo_hint, plan_task
from meshrun.runner.report.summary import _fusion_notes
from meshrun.runner.run import prepare
from meshrun.runner.run.execute import Options, run
from meshrun.runner.run.prepare import fused
from meshrun.runner.system.compiler import NotCompiled, find_compiler
from meshrun.runner.world.world import open_world, single_rank_world

FIELD = (((40, 30), np.dtype(np.float32)),)
STATE = [0]


class Compiled:
    """A kernel that nobody calls."""

    most_steps = 1
    finds_ends = ()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be compiled."""
    programs: list[Any] = []

    def compile_for(device: Any, program: Any, *others: Any) -> Any:
        programs.append(program)
        return Compiled(), "a compiler"

    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    return programs


def decide(
    function: Callable[..., Any],
    mode: str | None = "require",
    inputs: Any = FIELD,
    parameters: dict[str, Any] | None = None,
    steps: int = 1,
    **declared: Any,
) -> Any:
    """Return the task and the decision for a job on one CPU."""
    job = meshrun.map_blocks(**declared)(function) if declared else meshrun.map_blocks(function)
    given = job.complete(parameters or {})
    task = plan_task(with_inferred_halo(job, inputs, given), given, inputs, 1)
    return fused(single_rank_world(CpuBackend()), task, mode, "strict", steps)


def plus_one(block: Any) -> Any:
    return block + 1


def test_require_off_and_auto(no_compiler: list[Any]) -> None:
    task, fusion = decide(plus_one)
    assert isinstance(task.kernel, Compiled)
    assert task.results == (((40, 30), np.dtype(np.float32)),)
    assert (fusion.compiler, fusion.operations, fusion.inexact) == ("a compiler", 1, ())
    for mode, declared in (("off", "auto"), (None, "off")):
        task, fusion = decide(plus_one, mode, fuse=declared)
        assert task.kernel is None
        assert (fusion.why, fusion.quiet) == ("off", True)
    assert decide(plus_one, "require", fuse="off")[0].kernel is not None  # --fuse takes precedence
    assert decide(plus_one, None, fuse="require")[0].kernel is not None
    assert len(no_compiler) == 3


def test_small_work_on_a_cpu_is_not_compiled(no_compiler: list[Any]) -> None:
    task, fusion = decide(plus_one, "auto")
    assert task.kernel is None
    assert (fusion.why, fusion.quiet) == ("too little work for a compiler", True)
    assert no_compiler == []
    steps = fusing.WORTH_COMPILING // (40 * 30 * 4)
    assert decide(plus_one, "auto", steps=steps)[0].kernel is None
    assert decide(plus_one, "auto", steps=steps + 1)[0].kernel is not None


def test_many_operations_are_worth_a_compiler_for_fewer_bytes(no_compiler: list[Any]) -> None:
    """A step of a solver has hundreds, and NumPy goes through memory for each."""

    def many(block: Any) -> Any:
        for _ in range(100):
            block = block * 3 + 1
        return block

    array = 40 * 30 * 4
    steps = -(-fusing.OPERATED * fusing.WORTH_COMPILING // (array * 200))
    assert array * steps < fusing.WORTH_COMPILING
    assert decide(many, "auto", steps=steps - 1)[0].kernel is None
    assert decide(many, "auto", steps=steps)[0].kernel is not None
    assert decide(plus_one, "auto", steps=steps)[0].kernel is None


@pytest.mark.parametrize("more", [0, 1])
def test_whether_a_compiler_is_worth_it_does_not_depend_on_the_ranks(
    no_compiler: list[Any], more: int
) -> None:
    """A run and its resumption on another number of ranks have the same last bits of exp."""
    steps = fusing.WORTH_COMPILING // (40 * 30 * 4) + more
    job = meshrun.map_blocks(plus_one)

    def compiled(control: Any) -> bool:
        task = plan_task(job, {}, FIELD, control.size)
        return fused(open_world("cpu", control=control), task, "auto", "strict", steps)[0].kernel is not None

    assert [set(run_ranks(ranks, compiled)) for ranks in (1, 2, 3, 7)] == [{more > 0}] * 4


def test_an_array_without_cells_needs_no_kernel(no_compiler: list[Any]) -> None:
    task, fusion = decide(plus_one, "require", (((0, 30), np.dtype(np.float32)),))
    assert task.kernel is None
    assert fusion.quiet
    assert no_compiler == []


def test_functions_that_libraries_round_differently_are_named(no_compiler: list[Any]) -> None:
    assert decide(lambda block: np.sin(block) + np.exp(block) * np.sqrt(block))[1].inexact == ("exp", "sin")


def test_rank_0_chooses_the_steps_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, asked = 3, []

    def choose(kernel: DeviceKernel, device: Any, shape: Any, steps: int, grid: Any) -> ChosenKernel:
        asked.append((device.index, shape, steps, grid))
        return ChosenKernel(Choice(5 + device.index, Tuning()), "predicted")

    monkeypatch.setattr(DeviceKernel, "choose", choose)
    monkeypatch.setattr(DeviceKernel, "prepare", lambda *_: None)
    job = meshrun.map_blocks(halo=1)(lambda u: u[1:-1, 1:-1] + 0.25 * (u[:-2, 1:-1] - u[2:, 1:-1]))
    task = plan_task(job, {}, (((41, 30), np.dtype(np.float32)),), ranks)

    def rank(control: Control) -> list[int]:
        world = open_world("cpu", control=control)
        world.backend.device = Device("cuda", "a GPU", control.rank)
        return [fused(world, task, "require", "strict", steps)[0].kernel.most_steps for steps in (1, 9)]

    assert [found[1] for found in run_ranks(ranks, rank, timeout=60)] == [5, 5, 5]
    assert asked == [(0, (14, 30), 9, (3, 1))]


# What cannot be one kernel. Every refusal as an error, and as a line.


def branches(block: Any) -> Any:
    if block.max() > 3:  # line 1 of the function
        return block
    return block + 1


def sorts(block: Any) -> Any:
    return np.sort(block, axis=1)


def loops(block: Any) -> Any:
    return np.array([cell + 1 for cell in block])


def picks(block: Any) -> Any:
    block[block > 1] = 0
    return block[[0, 1]]


def places(block: Any, *, here: Any) -> Any:
    return block + here.offset[0]


def counts(block: Any) -> Any:
    STATE[0] += 1
    return block + STATE[0]


def counts_rows(block: Any) -> Any:
    return block / block.shape[0]


def fails(block: Any) -> Any:
    raise ValueError("not today")


def half(block: Any) -> Any:
    return block[::2]


def two(block: Any) -> Any:
    return block, block


REFUSED: list[tuple[Any, dict[str, Any], str, bool]] = [  # function, declared, reason, whether it has a line
    (branches, {}, "", True),
    (sorts, {}, "numpy.sort", True),
    (loops, {}, "iterates over the cells", True),
    (picks, {}, "", True),
    (places, {}, "uses here.offset", True),
    (counts, {}, "differs from one call to the next", True),
    (counts_rows, {}, "computes with the number of cells", True),
    (fails, {}, "raises ValueError: not today", True),
    (two, {}, "returns 2 results, not 1", True),
    (half, {"out": lambda shape, dtype: ((shape[0] // 2, *shape[1:]), dtype)}, "another size", False),
    (plus_one, {"out": lambda shape, dtype: (shape, "float64")}, "another dtype or shape than out=", False),
]


@pytest.mark.parametrize(
    ("function", "declared", "reason", "has_line"), REFUSED, ids=[one[0].__name__ for one in REFUSED]
)
def test_every_reason_is_an_error_or_a_line(
    monkeypatch: pytest.MonkeyPatch,
    no_compiler: list[Any],
    function: Any,
    declared: Any,
    reason: str,
    has_line: bool,
) -> None:
    with pytest.raises(UserError) as failure:
        decide(function, "require", **declared)
    error = failure.value
    assert "cannot be one kernel" in str(error)
    assert reason in str(error)
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    task, fusion = decide(function, "auto", **declared)
    assert task.kernel is None
    assert reason in fusion.why
    first = function.__code__.co_firstlineno
    assert (fusion.line > first) == has_line
    assert fusion.line < first + 6
    (line,) = _fusion_notes(asdict(fusion))
    assert line.startswith("  not one kernel: ")
    assert fusion.why in line
    if has_line:
        assert f"{__file__}, line {fusion.line}: " in str(error)
        assert f"line {fusion.line} " in line
    if fusion.hint:
        assert fusion.hint in str(error)
        assert line.endswith(f"write {fusion.hint}")
    assert no_compiler == []


def test_a_trace_that_is_not_what_the_function_computes_is_not_used(no_compiler: list[Any]) -> None:
    """It takes arrays of NumPy's for others than stand-ins."""

    def sly(block: Any) -> Any:
        return block + (1 if type(block) is np.ndarray else 2)

    def breaks(block: Any) -> Any:
        if type(block) is np.ndarray:
            raise KeyError("cells")
        return block + 1

    with pytest.raises(UserError, match="computes something else when it is traced"):
        decide(sly)
    with pytest.raises(UserError, match="raises KeyError on a small block"):
        decide(breaks)
    assert no_compiler == []


def test_what_a_function_writes_while_it_is_tried_is_not_seen(
    no_compiler: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def talks(block: Any) -> Any:
        print("here I am")
        return block + 1

    decide(talks)
    assert "here I am" not in capfd.readouterr().out


def test_ranks_that_are_threads_hide_what_a_trial_prints_and_nothing_else() -> None:
    before = sys.stdout
    entered, left = [[threading.Event(), threading.Event()] for _ in range(2)]

    def trial(rank: int) -> None:
        if rank == 1:
            entered[0].wait(60)
        with hide_output():
            entered[rank].set()
            if rank == 0:
                entered[1].wait(0.2)  # where both can be inside, the first leaves first
            else:
                left[0].wait(60)
        left[rank].set()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(trial, range(2)))
    assert sys.stdout is before


def test_quiet_reasons_are_not_written() -> None:
    assert _fusion_notes(asdict(Fusion(why="off", quiet=True))) == []
    assert _fusion_notes(asdict(Fusion("CUDA", operations=1))) == [
        "  one kernel by CUDA: 1 operation for each cell"
    ]


# Halos


def wide(block: Any) -> Any:
    return block[4:, 1:-1] + block[:-4, 1:-1] - block[2:-2, 2:]


def test_a_halo_that_is_not_named_is_inferred() -> None:
    def inferred(function: Any, **declared: Any) -> Any:
        job = meshrun.map_blocks(**declared)(function) if declared else meshrun.map_blocks(function)
        return with_inferred_halo(job, FIELD, {}).halo

    assert inferred(wide) == (2, 1)
    assert inferred(lambda block: np.diff(block, axis=1)[:, 1:]) == (0, 1)
    assert inferred(wide, halo=3) == 3
    assert inferred(plus_one) is None
    assert inferred(lambda block: block[...] * 2) is None
    assert inferred(lambda block: sorts(block)[1:-1]) is None  # it cannot be traced
    with pytest.raises(UserError) as failure:
        inferred(lambda block: block[1:])
    assert "its decorator names none" in str(failure.value)
    assert "Try: halo=((0, 1), 0) or halo=((1, 0), 0) in the decorator" in str(failure.value)


@pytest.mark.parametrize("needed", [(2,), (1,), (0, 3), (4, 2), (1, 0, 3), (0,)])
def test_a_hint_for_a_halo_can_be_typed(needed: tuple[int, ...]) -> None:
    hint = halo_hint(needed)
    assert hint.endswith(" in the decorator")
    for code in hint.removesuffix(" in the decorator").split(" or "):
        halo = eval(code.removeprefix("halo="))
        widths = normalize(meshrun.map_blocks(halo=halo)(wide).halo_for({}), len(needed))
        assert tuple(map(sum, widths)) == needed


LEFT, RIGHT = np.s_[:, :-2], np.s_[:, 2:]


class Differences:
    sides = (LEFT, RIGHT)

    def between(self, block: Any) -> Any:
        return self.right(block) - self.left(block)

    @staticmethod
    def left(block: Any) -> Any:
        return block[:, :-2]

    @staticmethod
    def right(block: Any) -> Any:
        return block[:, 2:]


def by_sides(block: Any, sides: Any) -> Any:
    return block[sides[1]] - block[sides[0]]


def between(block: Any, sides: Any = Differences.sides) -> Any:
    return by_sides(block, sides)


def test_a_halo_is_inferred_wherever_the_slices_are_written() -> None:
    helpers = ModuleType("helpers")
    helpers.__dict__["between"] = lambda block: block[:, 2:] - block[:, :-2]
    differences = Differences()

    swapped = functools.partial(by_sides, sides=(RIGHT, LEFT))
    typed: dict[str, Any] = {}
    exec("def between(block):\n    return block[:, 2:] - block[:, :-2]", typed)

    def inner(block: Any) -> Any:
        return block[:, 2:] - block[:, :-2]

    functions = {
        "in a function around it": lambda block: inner(block) * 2,
        "in another module": lambda block: helpers.between(block) * 2,
        "in globals": lambda block: block[RIGHT] - block[LEFT],
        "in a call": lambda block: (
            block[(slice(None), slice(2, None))] - block[(slice(None), slice(None, -2))]
        ),
        "in a method": lambda block: differences.between(block) * 2,
        "in a static method": lambda block: Differences.right(block) - Differences.left(block),
        "in a class": lambda block: block[Differences.sides[1]] - block[Differences.sides[0]],
        "in a default": lambda block: between(block) * 2,
        "in a partial function": lambda block: swapped(block) * 2,
        "where no source can be had": typed["between"],
    }
    halos = {
        where: with_inferred_halo(meshrun.map_blocks(function), FIELD, {}).halo
        for where, function in functions.items()
    }
    assert halos == dict.fromkeys(functions, (0, 1))


def test_an_inferred_halo_has_as_many_axes_as_are_computed_alike() -> None:
    job = meshrun.map_blocks(lambda block: block[1:-1, 1:-1])
    image = (((40, 30, 3), np.dtype(np.uint8)),)
    assert with_inferred_halo(job, image, {}).halo in ((1, 1), (1, 1, 0))


def test_functions_without_slices_are_not_called_for_their_halo() -> None:
    calls = []

    def counted(block: Any) -> Any:
        calls.append(1)
        return block + 1

    typed: dict[str, Any] = {"calls": calls}
    exec("def counted(block):\n    calls.append(1)\n    return block + 1", typed)
    for function in (counted, typed["counted"]):
        with_inferred_halo(meshrun.map_blocks(function), FIELD, {})
    assert calls == []


def test_slices_in_libraries_are_of_their_own_data() -> None:
    """A function that formats a text is not called because Python's library slices."""
    calls = []

    def counted(block: Any) -> Any:
        calls.append(1)
        return block + len(textwrap.dedent("a"))

    assert inferred_halo._is_sliced(textwrap.dedent.__code__)
    with_inferred_halo(meshrun.map_blocks(counted), FIELD, {})
    assert calls == []


def test_a_halo_that_is_too_small_is_an_error_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "in.npy", np.zeros((40, 30), np.float32))
    job = meshrun.map_blocks(halo=1)(wide)
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    with pytest.raises(RunError, match="wrong shape"):  # small work is not traced: the first call fails
        job.run(source, target, device="cpu")
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    for mode in ("require", "auto"):
        with pytest.raises(UserError) as failure:
            job.run(source, target, device="cpu", fuse=mode)
        assert "its halo is too small" in str(failure.value)
        assert "halo=(2, 1) in the decorator" in str(failure.value)
    assert not target.exists()


# Several ranks


@pytest.mark.parametrize("without", [0, 2])
def test_a_rank_without_a_compiler_decides_for_all(monkeypatch: pytest.MonkeyPatch, without: int) -> None:
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    job = meshrun.map_blocks(plus_one)
    task = plan_task(job, {}, FIELD, 3)

    def body(control: Control) -> Any:
        world = open_world("cpu", control=control)

        class Here:
            """Tells the rank that asks."""

            kind, rank = "cpu", control.rank

        world.backend.device = Here()  # type: ignore[assignment]
        found = []
        for mode in ("auto", "require"):
            try:
                found.append(fused(world, task, mode, "strict"))
            except UserError as failure:
                found.append(failure)
        return found

    def compile_for(device: Any, *others: Any) -> Any:
        if device.rank == without:
            raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
        return Compiled(), "g++"

    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    for (plain, fusion), failure in run_ranks(3, body):
        assert plain.kernel is None
        assert fusion.why == "no C++ compiler on this host"
        assert isinstance(failure, UserError)
        assert "CXX=/path/to/g++" in str(failure)


# Compilers that fail


def roots(block: Any) -> Any:
    shifted = block + 3
    return np.sqrt(shifted) * shifted


ROOT_LINE = roots.__code__.co_firstlineno + 2


def refused_by(monkeypatch: pytest.MonkeyPatch, device: str, found: Any, mode: str) -> Any:
    """What is decided for `roots`. found: the line of the kernel's text that the compiler names."""
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)

    def refuse(text: str, *others: Any) -> Any:
        raise NotCompiled("the compiler is in a bad mood", found(text))

    monkeypatch.setattr(host, "library", refuse)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.cuda", SimpleNamespace(kernel_of_text=refuse))
    world = single_rank_world(CpuBackend())
    world.backend.device = SimpleNamespace(kind=device)  # type: ignore[assignment]
    job = meshrun.map_blocks(roots)
    return fused(world, plan_task(job, {}, FIELD, 1), mode, "strict")


def line_with(word: str) -> Any:
    """The number of the first line of a text that has the word."""
    return lambda text: next(n for n, line in enumerate(text.splitlines(), 1) if word in line)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("found", "line"),
    [
        (line_with("= numpy::sqrt<float>("), ROOT_LINE),
        (line_with("namespace numpy"), 0),
        (lambda text: 0, 0),
        (lambda text: 10**9, 0),
    ],
    ids=["line", "header", "none", "beyond"],
)
def test_a_compiler_that_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, device: str, found: Any, line: int
) -> None:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    task, fusion = refused_by(monkeypatch, device, found, "auto")
    assert task.kernel is None
    assert (fusion.compiler, fusion.line, fusion.refused) == (None, line, True)
    place = f"line {line} " if line else ""
    assert _fusion_notes(asdict(fusion)) == [f"  not one kernel: {place}the compiler is in a bad mood"]
    with pytest.raises(UserError) as failure:
        refused_by(monkeypatch, device, found, "require")
    place = f"{__file__}, line {line}: " if line else f"{__file__}: "
    assert f"does not compile: got {place}the compiler is in a bad mood" in str(failure.value)
    assert "Try: --fuse off" in str(failure.value)


def test_a_run_with_a_host_compiler_that_fails_calls_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(
        """#!/bin/sh
        if [ "$1" = --version ]; then echo 1; exit 0; fi
        echo "<stdin>:$(grep -n -m 1 'v[0-9]* = numpy::sqrt' | cut -d: -f1):7: error: no roots today" >&2
        exit 1
        """
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 0)
    array = np.random.default_rng(1).random((9, 7)).astype(np.float32)
    job, target = meshrun.map_blocks(roots), tmp_path / "out.npy"
    record = job.run(array, target, device="cpu")
    np.testing.assert_array_equal(np.load(target), roots(array))
    assert record["fused"]["line"] == ROOT_LINE
    assert "no roots today" in record["fused"]["why"]
    with pytest.raises(UserError, match=f"line {ROOT_LINE}: .*no roots today"):
        job.run(array, tmp_path / "other.npy", device="cpu", fuse="require")
    assert not (tmp_path / "other.npy").exists()


# Runs by a compiled kernel


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    return tmp_path_factory.mktemp("cache")


@meshrun.map_blocks(halo=1, boundary="wrap")
def flow(block: Any, *, rate: float = 0.25) -> Any:
    inner = block[1:-1, 1:-1]
    return inner + rate * (block[:-2, 1:-1] + block[2:, 1:-1] - 2 * inner) / (1 + abs(block[1:-1, 2:]))


RUNS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (3, {"grid": "1x3"}),
    (4, {"grid": "2x2", "boundary": "constant"}),
    (2, {"stream": StreamOptions(chunk_bytes=1500)}),
    (1, {"steps": StepOptions(7)}),
    (3, {"steps": StepOptions(7, steps_per_exchange=2), "overlap": True, "boundary": "mirror"}),
    (2, {"steps": StepOptions(7), "stream": StreamOptions(chunk_bytes=1500)}),
]


@pytest.mark.parametrize(("ranks", "options"), RUNS, ids=map(str, range(len(RUNS))))
def test_runs_by_a_kernel_have_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path, ranks: int, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    array = np.random.default_rng(1).normal(0, 2, (48, 21)).astype(np.float32)
    np.save(tmp_path / "in.npy", array)
    found = []
    for mode in ("off", "require"):
        target = tmp_path / f"{mode}.npy"
        chosen = Options(device="cpu", verify="full", fuse=mode, **options)

        def rank(control: Control, chosen: Options = chosen, target: Path = target) -> Any:
            world = open_world("cpu", control=control)
            return run(flow, [tmp_path / "in.npy"], [target], {}, chosen, world=world)

        record = run_ranks(ranks, rank, timeout=60)[0]
        found.append(np.load(target))
        assert bool(record["fused"] and record["fused"]["compiler"]) == (mode == "require")
        assert (record["stream"] is not None) == ("stream" in options)
    assert found[0].tobytes() == found[1].tobytes()
    if ranks == 1 and not options:
        padded = np.pad(array, 1, PAD["wrap"])
        assert found[1].tobytes() == flow.function(padded).tobytes()
    assert len([*(kept / "meshrun").iterdir()]) == 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_another_byte_order_are_fused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path, order: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    array = np.random.default_rng(1).normal(0, 2, (48, 21)).astype(f"{order}f4")
    target = tmp_path / "out.npy"
    found = []
    for mode in ("off", "require"):
        flow.run(array, target, device="cpu", fuse=mode)
        found.append(np.load(target))
    assert found[0].dtype == found[1].dtype
    np.testing.assert_array_equal(found[1], found[0])


# Options


PROGRAM = """
import meshrun

@meshrun.map_blocks(halo=1)
def flow(block):
    return block[1:-1, 1:-1] + 1

@meshrun.map_blocks
def peak(block):
    return block / block.max()
"""


def test_the_command_takes_fuse_and_fuse_math(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    decisions = []

    def decide_only(device: Any, task: Any, mode: Any, arithmetic: str, steps: int = 1) -> Any:
        decisions.append((mode, arithmetic, steps))
        return fused_alone(device, task, mode, arithmetic, steps)

    monkeypatch.setattr(prepare, "fused_alone", decide_only)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROGRAM)
    np.save("in.npy", np.ones((9, 7), np.float32))

    def command(job: str, *options: str) -> int:
        arguments = ["run", f"mine.py:{job}", "in.npy", "out.npy", "--device", "cpu", *options]
        return main(arguments)

    assert command("flow") == 0
    assert command("flow", "--fuse-math", "fast", "--steps", "3") == 0
    assert command("flow", "--fuse", "off") == 0  # is not asked at all
    assert decisions == [(None, "strict", 1), (None, "fast", 3)]
    capfd.readouterr()
    assert command("peak", "--fuse", "require") == 2
    said = capfd.readouterr().err
    assert "job peak cannot be one kernel" in said
    assert f"{Path('mine.py').resolve()}, line 10: " in said
    for wrong in (("--fuse", "always"), ("--fuse-math", "loose")):
        assert command("flow", *wrong) == 2
        assert wrong[1] in capfd.readouterr().err
    assert len(decisions) == 3


def test_python_takes_them_as_keywords(tmp_path: Path, no_compiler: list[Any]) -> None:
    array = np.ones((9, 7), np.float32)
    with pytest.raises(UserError, match="cannot be one kernel"):
        meshrun.map_blocks(sorts).run(array, tmp_path / "out.npy", device="cpu", fuse="require")
    for wrong in ({"fuse": "always"}, {"fuse_math": "loose"}):
        with pytest.raises(UserError, match=next(iter(wrong.values()))):
            meshrun.map_blocks(plus_one).run(array, tmp_path / "out.npy", device="cpu", **wrong)
    with pytest.raises(UserError, match="unknown value of fuse="):
        meshrun.map_blocks(fuse="always")(plus_one)  # type: ignore[call-overload]
    assert no_compiler == []

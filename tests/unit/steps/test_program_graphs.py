"""Steps in stages as a GPU takes them: kernels that reduce, kernels of values, graphs; run by the host."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import GXX, launchers
from point_threads import by_threads

from meshrun.runner.arrays.halo import exchange
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.whole import point_code, point_kernel
from meshrun.runner.compiler.whole.point_pass import PointCells
from meshrun.runner.device.api import NotCapturable
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.programs import kernel as program_kernel
from meshrun.runner.programs import looping
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps import halo_path, program_steps, stepper
from meshrun.runner.steps.observers import series as observed_series
from meshrun.runner.system.compiler import NotCompiled
from meshrun.runner.world.world import World, open_world
from tests.facts.host_halo import HostTables
from tests.facts.host_halo import compiled as compiled_halos
from tests.facts.queued_device import GraphBackend
from tests.facts.reducing_steps import apart, centred, conjugate, directions, energy, every_size, mean

pytestmark = pytest.mark.skipif(GXX is None, reason="needs g++")


@distribute(outputs=("u", "t"))
def heat(u, t):
    """The step in time depends on the largest value of the state."""
    dt = np.float32(0.2) / (np.max(np.abs(u)) + np.float32(0.5))
    u[1:-1, 1:-1] += dt * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    u[0], u[-1] = 1, 0
    t += dt
    return u, t


@distribute(outputs=("u", "t"))
def inner(u, t):
    """The largest and the smallest value of a part."""
    dt = np.float32(0.1) / (np.max(u[3:-2, 4:-5]) - np.min(u[2:]) + np.float32(1))
    u += dt * (np.roll(u, 1, 0) - u)
    t += dt
    return u, t


@distribute(outputs=("u", "t"))
def between(u, t):
    """A maximum of what a stage has written: it is not reduced ahead."""
    v = u * 2 - np.roll(u, 1, 0)
    most = np.max(v)
    w = v / most
    u[:] = w + np.float32(0.25) * np.roll(w, 1, 1)
    t += np.min(w)
    return u, t


class Gpu(GraphBackend):
    """It computes by kernels for GPUs, which the host runs."""

    def __init__(self) -> None:
        super().__init__()
        self.device = replace(self.device, kind="cuda")


class NoGraphs(Gpu):
    """Its recording fails in the middle, with nothing done."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise NotCapturable("no graphs")


launched: list[str] = []


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Return the kernels that are compiled, by their texts."""
    return {}


@pytest.fixture(scope="module")
def halos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_halos(tmp_path_factory.mktemp("halos"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], halos: Path) -> None:
    launched.clear()
    monkeypatch.setattr(
        halo_path,
        "find_tables",
        lambda world, ndim: HostTables(halos) if world.backend.device.kind == "cuda" else None,
    )
    one_at_a_time = threading.Lock()

    def compiled(source: str, name: str) -> Callable[..., None]:
        with one_at_a_time:
            return built(source, name)

    def built(source: str, name: str) -> Callable[..., None]:
        if source not in made:
            with tempfile.TemporaryDirectory() as folder:
                text: Any = type("Text", (), {"source": source, "name": name})
                (made[source],) = launchers(Path(folder), [text])

        def launch(*arguments: Any, shared_mem: int = 0) -> None:
            body = source.partition("__global__")[2]
            launched.append(name + (" reducing" if "keep_best<" in body or "keep_sum<" in body else ""))
            with one_at_a_time:  # a kernel's threads are counted in global variables
                made[source](*arguments)

        return launch

    monkeypatch.setattr(World, "versions", lambda self: {})
    monkeypatch.setattr(
        DeviceKernel, "_compiled", lambda self, source, name, shared=0: compiled(source, name)
    )
    monkeypatch.setattr(program_kernel, "compile_values", lambda kernel: compiled(kernel.source, kernel.name))
    monkeypatch.setattr(point_kernel, "compile_points", by_threads)
    monkeypatch.setattr(observed_series, "compile_points", by_threads)


def files(folder: Path) -> tuple[list[Path], list[Path]]:
    np.save(folder / "u.npy", np.random.default_rng(0).normal(size=(33, 25)).astype(np.float32))
    np.save(folder / "t.npy", np.float32(0.5))
    return [folder / "u.npy", folder / "t.npy"], [folder / f"{name}_after.npy" for name in "ut"]


def taken(folder: Path, job: Any, steps: int, backend: Any = Gpu, ranks: int = 1, **options: Any) -> Any:
    given = files(folder)

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        world.backend = backend()
        return run(job, *given, {}, Options(steps=StepOptions(steps=steps), **options), world=world)

    return run_ranks(ranks, rank)[0], [np.load(path) for path in given[1]]


def plain(folder: Path, job: Any, steps: int) -> list[Any]:
    u, t = (np.load(path) for path in files(folder)[0])
    for _ in range(steps):
        u, t = job.function(u, t)
    return [u, t]


@pytest.mark.parametrize("job", [heat, inner, between], ids=lambda job: job.name)
@pytest.mark.parametrize(("steps", "ranks"), [(75, 1), (5, 2)])
def test_numpys_bits(tmp_path: Path, gpu: None, job: Any, steps: int, ranks: int) -> None:
    record, found = taken(tmp_path, job, steps, ranks=ranks)
    for one, want in zip(found, plain(tmp_path, job, steps), strict=True):
        assert one.tobytes() == np.asarray(want).tobytes()
    assert record["steps"]["graph"] == (ranks == 1)


def stepped(folder: Path, function: Any, arrays: dict[str, Any], steps: int, ranks: int, kind: Any) -> Any:
    """Return the record and the results of a run by GPUs, CPUs or another back end."""
    job = distribute(outputs=tuple(arrays))(function)
    given, made = ([folder / f"{key}{end}.npy" for key in arrays] for end in ("", "_after"))
    for path, one in zip(given, arrays.values(), strict=True):
        np.save(path, one)

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        if kind != "cpu":
            world.backend = Gpu() if kind == "gpu" else kind()
        return run(job, given, made, {}, Options(steps=StepOptions(steps=steps)), world=world)

    record = run_ranks(ranks, rank)[0]
    return record, [np.load(path) for path in made]


def state(function: Any, dtype: str, shape: tuple[int, ...] = (33, 25)) -> dict[str, Any]:
    u = np.random.default_rng(0).normal(size=shape).astype(dtype)
    if function is conjugate:
        return {"x": u * 0, "r": u, "p": u * 0, "rs": np.vdot(u, u), "beta": u[0, 0] * 0}
    if function is directions:
        return {"x": u * 0, "r": u, "p": u, "rs": np.sum(u * u)}
    return {"u": u, "t": np.zeros((), dtype)}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (mean, "float32"),
        (energy, "float64"),
        (centred, "float32"),
        (every_size, "float64"),
        *((conjugate, "float32"), (apart, "float64"), (directions, "float32")),
    ],
)
def test_sums_have_the_same_bits_everywhere(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, function: Any, dtype: str
) -> None:
    monkeypatch.setattr(ThreadComm, "capturable", True)
    arrays = state(function, dtype)
    _, wanted = stepped(tmp_path, function, arrays, 37, 1, "cpu")
    for ranks, kind in ((3, "cpu"), (1, "gpu"), (2, "gpu"), (5, "gpu")):
        record, found = stepped(tmp_path, function, arrays, 37, ranks, kind)
        assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted], (ranks, kind)
        assert record["steps"]["graph"] == (kind == "gpu")


@pytest.mark.parametrize(("ranks", "kind"), [(1, "cpu"), (3, "cpu"), (1, "gpu"), (2, "gpu")])
def test_a_result_that_later_stages_read_beside_has_numpys_bits(
    tmp_path: Path, gpu: None, ranks: int, kind: str
) -> None:
    def chained(u, t):
        for _ in [*range(9)]:  # unrolled: costs more than to write it
            u = (u * u + np.roll(u, 1, 1)) / (u * u + 2) + np.roll(u, 1, 0) / 4
        most = np.max(u)
        t += np.max(np.roll(u, 2, 0) - np.roll(u, -1, 1)) / most
        return u, t

    arrays = state(chained, "float32")
    _, found = stepped(tmp_path, chained, arrays, 5, ranks, kind)
    wanted = list(arrays.values())
    for _ in range(5):
        wanted = list(chained(wanted[0].copy(), wanted[1].copy()))
    assert [one.tobytes() for one in found] == [np.asarray(one).tobytes() for one in wanted]


def test_sums_are_near_numpys(tmp_path: Path, gpu: None) -> None:
    arrays = state(energy, "float64")
    _, found = stepped(tmp_path, energy, arrays, 5, 2, "gpu")
    wanted = [one.copy() for one in arrays.values()]
    for _ in range(5):
        wanted = list(energy(*wanted))
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "passes"),
    [(mean, 1), (energy, 1), (centred, 1), (conjugate, 2), (apart, 1), (directions, 2)],
)
def test_a_pass_adds_what_it_computes(tmp_path: Path, gpu: None, function: Any, passes: int) -> None:
    stepped(tmp_path, function, state(function, "float32"), 3, 1, "gpu")
    found = [one for one in launched if one != "values"]
    before = {mean: 1, centred: 2, directions: 1}.get(function, 0)  # of the first step alone
    assert len(found) == before + 3 * passes


def test_a_step_reads_the_state_once(tmp_path: Path, gpu: None) -> None:
    taken(tmp_path, heat, 3)
    step = ["values", "single_pass reducing", "values"]
    before, *rest = launched
    assert before == "single_pass reducing"  # of the first step alone
    assert [one for one in rest if one != "values"] == ["single_pass reducing"] * 3
    assert len(rest) <= 3 * len(step)


def test_without_graphs_the_bits_are_the_same(tmp_path: Path, gpu: None) -> None:
    record, found = taken(tmp_path, heat, 40, NoGraphs)
    assert found[0].tobytes() == plain(tmp_path, heat, 40)[0].tobytes()
    assert record["steps"]["graph_reason"] == "no graphs"


@pytest.mark.parametrize("fuse", ["require", "auto"])
def test_a_kernel_that_does_not_compile(
    tmp_path: Path, gpu: None, fuse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotCompiled("CUDA's compiler fails: too long")

    monkeypatch.setattr(DeviceKernel, "_compiled", refuse)
    if fuse == "require":
        with pytest.raises(UserError, match="does not compile"):
            taken(tmp_path, heat, 3, fuse=fuse)
        return
    record, found = taken(tmp_path, heat, 3, fuse=fuse)
    assert found[0].tobytes() == plain(tmp_path, heat, 3)[0].tobytes()
    assert any("stage 1 of 3" in one and "has no kernel" in one for one in record["warnings"])


def solved(u, t):
    """Sweeps, and an inner solve whose condition is a value."""
    x, r = np.zeros_like(u), u.copy()
    p, rr = r.copy(), np.sum(r * r)
    k = 0
    while rr > 1e-6 and k < 12:
        q = 4 * p - np.roll(p, 1, 0) - np.roll(p, -1, 0)
        alpha = rr / np.sum(p * q)
        x += alpha * p
        r -= alpha * q
        new = np.sum(r * r)
        p = r + new / rr * p
        rr, k = new, k + 1
    for i in range(6):
        x[1:-1] = (x[2:] + x[:-2]) / 2 + u[1:-1] * (0.01 * i)
    if np.max(x) > 0.5:
        t += np.max(np.abs(x - np.roll(x, 1, 1)))
    return x, t


def swept(u, t):
    """A loop of a known number of iterations alone, which a graph can hold."""
    m = np.max(u)
    for _ in range(7):
        v = u.copy()
        u[1:-1] = (v[2:] + v[:-2]) / 2
        u[0] = np.min(u[1])
    t += m
    return u, t


@pytest.mark.parametrize("function", [solved, swept])
def test_loops_have_the_same_bits_everywhere(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    monkeypatch.setattr(ThreadComm, "capturable", True)
    arrays, steps = state(function, "float32"), 37 if function is swept else 2
    _, wanted = stepped(tmp_path, function, arrays, steps, 1, "cpu")
    for ranks, kind in ((1, "gpu"), (2, "gpu"))[: 1 if function is swept else 2]:
        record, found = stepped(tmp_path, function, arrays, steps, ranks, kind)
        assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted], (ranks, kind)
        assert record["steps"]["graph"] == (kind == "gpu" and function is swept)


Y, X = np.array([2, 9, 30, 9]), np.array([3, 0, 24, 8])


@distribute(outputs=("u",), series=("heard", "cell"))
def faint(u):
    """Products of values at points are subnormal, in stages."""
    new = u / (1 + u.max())
    new[Y, X] = u[Y - 1, X] * np.float32(1e-10)
    return new, np.roll(new, 2, 0)[Y, X] * np.float32(1e-10), u[17, 4] * (u.min() + np.float32(1e-11))


@distribute(outputs=("u",), series=("heard",))
def faint_in_one_kernel(u):
    """A series that reads beside the points of what the step begins with."""
    new = 0.5 * (u + np.roll(u, 1, 1))
    return new, (new[Y, X] + u[Y - 1, X]) * np.float32(1e-10)


@pytest.mark.parametrize("every", [None, 4])
@pytest.mark.parametrize("job", [faint, faint_in_one_kernel], ids=lambda job: job.name)
def test_values_at_points_may_be_subnormal(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, job: Any, every: int | None
) -> None:
    """CuPy's kernels take subnormal numbers for 0, those of compiled code do not."""
    computed = PointCells.compute

    def by_cupy(*arguments: Any) -> Any:
        values, cells = computed(*arguments)
        return [one * (np.abs(one) >= np.finfo(np.float32).tiny) for one in values], cells

    monkeypatch.setattr(PointCells, "compute", by_cupy)
    u = (np.random.default_rng(0).random((33, 25)) * 1e-30 + 1e-30).astype(np.float32)
    np.save(tmp_path / "u.npy", u)
    made, steps = [tmp_path / f"{name}_after.npy" for name in ("u", *job.series)], 9
    world = open_world("cpu")
    world.backend = Gpu()
    run(
        job, [tmp_path / "u.npy"], made, {}, Options(steps=StepOptions(steps=steps, every=every)), world=world
    )
    rows = []
    for step in range(1, steps + 1):
        u, *row = job.function(u.copy())
        rows += [row] if step % (every or 1) == 0 or step == steps else []
    for path, want in zip(made, [u, *map(np.stack, zip(*rows, strict=True))], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem
        assert path.stem == "u_after" or 0 < np.abs(want).max() < np.finfo(np.float32).tiny


class Recording(Gpu):
    """Its graphs are recorded without being done, as on a GPU: what they change is put back."""

    recording = False

    def capture(self, work: Any) -> Any:
        blocks = work.func.__self__
        states = [one.block for one in (*blocks.arrays, *blocks.spare.values())]
        states += [blocks.recorded._written, *blocks.recorded.rows]
        kept = [one.copy() for one in states]
        Recording.recording = True
        try:
            work()
        finally:
            Recording.recording = False
            for one, before in zip(states, kept, strict=True):
                one[...] = before
        return work


class Uploads:
    """In place of CuPy: a graph cannot hold what allocates memory."""

    @staticmethod
    def asarray(array: Any) -> Any:
        if Recording.recording:
            raise NotCapturable("the function allocates device memory")
        return array.copy()


@distribute(outputs=("now", "before"), series=("trace",))
def heard(now, before, *, step):
    """A leapfrog scheme with sources that depend on the step, and receivers."""
    new = 2 * now - before
    new[1:-1] += np.float32(0.1) * (now[2:] + now[:-2] - 2 * now[1:-1])
    points = (np.array([2, 3, 5]), np.array([1, 4, 0]), np.array([3, 0, 2]))[: now.ndim]
    new[points] += np.float32(0.25) * step
    return new, now, new[tuple(one + 1 for one in points)]


@pytest.mark.parametrize("shape", [(12, 9), (8, 7, 6)])
def test_graphs_hold_points_and_series_with_numbers_of_the_step(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(stepper, "EAGER", 4)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (8, 2, 1))
    monkeypatch.setattr(stepper, "WORTH_MAKING", 1)
    monkeypatch.setattr(point_code, "array_module", lambda array: Uploads)
    chosen, noted = stepper.choose_steps, []
    monkeypatch.setattr(
        stepper,
        "choose_steps",
        lambda *given, **options: noted.append(chosen(*given, **options)) or noted[-1],
    )
    arrays = [np.random.default_rng(n).random(shape, dtype=np.float32) for n in range(2)]
    given, made = [tmp_path / f"{n}.npy" for n in range(2)], [tmp_path / f"{n}_after.npy" for n in range(3)]
    for path, one in zip(given, arrays, strict=True):
        np.save(path, one)
    world, rows = open_world("cpu"), []
    world.backend = Recording()
    record = run(heard, given, made, {}, Options(fuse="require", steps=StepOptions(steps=31)), world=world)
    for step in range(31):
        *arrays, row = heard.function(*(one.copy() for one in arrays), step=step)
        rows.append(row)
    for path, want in zip(made, [*arrays, np.stack(rows)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem
    assert record["steps"]["graph"], record["steps"].get("graph_reason")
    assert noted[0].handed_on == {1: 0}  # the earlier field is not copied


def relaxed(u, t):
    """Sweeps that kernels of several steps take, between stages."""
    b = np.roll(u, 1, 0) - np.roll(u, -1, 1)
    for _ in range(19):
        v = u.copy()
        u[1:-1, 1:-1] = (v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2] - b[1:-1, 1:-1]) / 4
        u[:, 0] = u[:, 1]
    t += np.max(u)
    return u, t


in_graph = threading.local()


def without_memory(work: Callable[[], None]) -> None:
    """Do what a graph does."""
    in_graph.now = True
    try:
        work()
    finally:
        in_graph.now = False


class WithoutMemory(Gpu):
    """What its graphs do allocates no memory for messages."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return super().capture(lambda: without_memory(work))


@pytest.fixture
def no_buffers_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange_with_new_buffers(*given: Any, **options: Any) -> Any:
        if getattr(in_graph, "now", False):
            raise NotCapturable("a graph allocates buffers of messages")
        return started(*given, **options)

    started = exchange.start_exchange
    monkeypatch.setattr(exchange, "start_exchange", exchange_with_new_buffers)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_graph_holds_sweeps(tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    kernels: list[int] = []

    def advance(self: Any, blocks: Any, steps: int, more: int = 0, rows: Any = None) -> None:
        # All rows that these steps and those to follow need: own rows, and those of a halo that is another
        # rank's.
        layout, u, b = blocks.layouts[0], blocks.arrays[0].block, blocks.arrays[1].block
        core, whole = layout.core, blocks.task.shape
        before, after = layout.region.start[0] > 0, layout.region.stop[0] < whole[0]
        far = steps + more
        window = slice(core[0].start - far * before, core[0].stop + far * after), core[1]
        kept = slice(core[0].start - more * before, core[0].stop + more * after), core[1]
        assert u.shape == b.shape
        u, b = u[window], b[window]
        for _ in range(steps):
            v = u.copy()
            v[1:-1, 1:-1] = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - b[1:-1, 1:-1]) / 4
            v[:, 0] = v[:, 1]
            u = v
        blocks.spare[0].block[kept] = u[steps * before : len(u) - steps * after]
        kernels.append(steps)

    monkeypatch.setattr(ThreadComm, "capturable", True)
    monkeypatch.setattr(DeviceKernel, "prepare_steps", lambda *_, **__: None)
    monkeypatch.setattr(DeviceKernel, "advance", advance)
    arrays = state(relaxed, "float32")
    _, wanted = stepped(tmp_path, relaxed, arrays, 75, 1, "cpu")
    shared: list[bool] = []
    serves = exchange.HaloPlan.serves_for
    monkeypatch.setattr(
        exchange.HaloPlan, "serves_for", lambda *plans: shared.append(serves(*plans)) or shared[-1]
    )
    record, found = stepped(tmp_path, relaxed, arrays, 75, ranks, WithoutMemory)
    assert shared  # what the loop reads and leaves is not copied
    assert all(shared)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    assert record["steps"]["graph"], record["steps"]["graph_reason"]
    assert sum(kernels) == ranks * 75 * 19
    assert len(kernels) < ranks * 75 * 19 / 2


class Iterations(Gpu):
    """Its graphs of iterations change memory when replayed, and the state of the host when made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def empty(self, shape: Any, dtype: Any) -> Any:
        self.made.append(super().empty(shape, dtype))
        return self.made[-1]

    host_empty = empty

    def capture(self, work: Any) -> Callable[[], None]:
        run = work.func.__self__.run
        memory = [one.copy() for one in self.made]
        super().capture(work)
        without_memory(work)
        for one, before in zip(self.made, memory, strict=True):
            one[...] = before

        def replay() -> None:
            known, exchanges, read = run.known, run.exchanges, list(run.arrays)
            valid = [(one, one.valid) for one in read if one is not None]
            work()
            run.known, run.exchanges, run.arrays[:] = known, exchanges, read
            for one, before in valid:
                one.valid = before

        return replay


def converging(u, t):
    """A condition that ends a loop after so many iterations that some are launched ahead."""
    k, change = 0, np.max(np.abs(u))
    while change > 1e-3 and k < 500:
        v = u.copy()
        u[1:-1] = (v[2:] + v[:-2]) / 2 + np.float32(0.01) * k
        u[1:-1] -= np.float32(0.01) * k
        change = np.max(np.abs(u - v))
        k += 1
    t += change + k
    return u, t


def descending(u, t):
    """Conjugate gradients, whose iterations begin with a sum that the one before has made."""
    x, r, p, rs, k = np.zeros_like(u), u.copy(), u.copy(), np.sum(u * u), 0
    while rs > 1e-9 and k < 53:
        x, r, p, rs = directions(x, r, p, rs)
        k += 1
    t += rs + k
    return x, t


@pytest.mark.parametrize(
    ("function", "ranks", "batch_bytes"),
    [(converging, 1, 0), (converging, 2, 1 << 20), (descending, 1, 1 << 20), (descending, 3, 0)],
)
def test_iterations_are_graphs(
    tmp_path: Path,
    gpu: None,
    no_buffers_in_graphs: None,
    monkeypatch: pytest.MonkeyPatch,
    function: Any,
    ranks: int,
    batch_bytes: int,
) -> None:
    monkeypatch.setattr(ThreadComm, "capturable", True)
    monkeypatch.setattr(looping, "BATCH_BYTES", batch_bytes)
    arrays, steps = state(converging, "float32", (17, 9)), 7
    slow, wanted = stepped(tmp_path, function, arrays, steps, ranks, "cpu")
    before = Iterations.captured
    record, found = stepped(tmp_path, function, arrays, steps, ranks, Iterations)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    assert wanted[1] > 2 * looping.AHEAD
    assert Iterations.captured > before
    assert record["steps"]["graph_reason"] == program_steps.WAITS_BETWEEN_GRAPHS
    if function is converging:
        assert record["steps"]["exchanges"] == slow["steps"]["exchanges"]


class Counted(Iterations):
    """It counts copies of values to the host, and the marks that the host waits for."""

    rows = 0
    marks: tuple[Any, ...] = ()

    def keep_row(self, row: Any, kept: Any, host: Any, moves: Any) -> None:
        type(self).rows += host is not None
        super().keep_row(row, kept, host, moves)

    def passed(self, mark: Any) -> None:
        if not any(mark is one for one in self.marks[-8:]):
            type(self).marks += (mark,)
        super().passed(mark)


@pytest.mark.parametrize("batch_bytes", [0, 1 << 20])
def test_the_host_waits_for_the_condition_alone(
    tmp_path: Path, gpu: None, no_buffers_in_graphs: None, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """One copy of values per iteration that is launched, and at most one wait."""
    monkeypatch.setattr(looping, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(Counted, "rows", 0)
    monkeypatch.setattr(Counted, "marks", ())
    steps, arrays = 3, state(converging, "float32", (17, 9))
    record, _ = stepped(tmp_path, descending, arrays, steps, 1, Counted)
    (loop,) = record["loops"]
    # In each step, some iterations are launched in vain; some are recorded for a graph.
    spare = (steps + 4) * 4 * looping.BATCHES[0]
    assert loop["iterations"] > 100
    assert loop["iterations"] <= Counted.rows <= loop["iterations"] + spare
    assert len(Counted.marks) <= Counted.rows


def test_iterations_without_graphs(tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = state(converging, "float32", (17, 9))
    _, wanted = stepped(tmp_path, converging, arrays, 2, 1, "cpu")
    monkeypatch.setattr(Gpu, "capture", NoGraphs.capture)
    record, found = stepped(tmp_path, converging, arrays, 2, 1, "gpu")
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    assert record["steps"]["graph_reason"] == f"{program_steps.WAITS}: no graphs"

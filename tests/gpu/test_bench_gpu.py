"""`meshrun bench` on GPUs: on one in this process, and on as many as there are through the launcher.

Run as a program this file is one rank of those: `mpiexec -n 4 python tests/gpu/test_bench_gpu.py FILE` puts
what all of them found into FILE.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun import World, open_world
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.measure import measure, sweep
from meshrun.jobs.bench.collectives.session import Point
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Call
from meshrun.runner.errors import MeshrunError
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.rank_process import run_as_rank
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

ROOT = Path(__file__).parents[2]
SAME = ROOT / "tests" / "unit" / "bench" / "collectives" / "test_corruption.py"
same = SimpleNamespace(**runpy.run_path(str(SAME)))

DEADLOCK = 110  # seconds; nothing here takes half of it
ALLOWED = 3  # seconds without progress, where a rank is stopped
ROW = re.compile(
    r" +\d+ +\d+ +(?:int|uint|half|float|double|bfloat|f8)\w* .*"
)  # hypercube shows no reduction
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
KEEPING_TYPES = ("int8", "bfloat16", "double", "f8e5m2")  # one of each size, and of each kind

# How something is measured, and the operation that is asked to show it.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "-G 2": ("all_reduce", {"cudagraph": 2}),
    "-G 2 -m 3": ("alltoall", {"cudagraph": 2, "agg_iters": 3}),
    "-G 1 -R 2": ("all_gather", {"cudagraph": 1, "local_register": 2}),
    "-R 1": ("all_reduce", {"local_register": 1}),
    "-R 2": ("all_reduce", {"local_register": 2}),
    "-R 2 -u 1": ("alltoall", {"local_register": 2, "unalign": 1}),
    "-I 1": ("all_reduce", {"per_iter_timing": True}),
    "-I 1 -z 3": ("broadcast", {"per_iter_timing": True, "blocking": 3}),
    "-m 4": ("sendrecv", {"agg_iters": 4}),
    "-z 1": ("all_reduce", {"blocking": 1}),
    "-z 2": ("alltoallv", {"blocking": 2}),
    "-u 3": ("reduce_scatter", {"unalign": 3}),
    "-y 1": ("all_reduce", {"stream_null": True}),
    "-y 1 -u 1": ("hypercube", {"stream_null": True, "unalign": 1}),
    "-x 1": ("all_gather", {"cta_policy": 1}),
    "-M 1": ("all_reduce", {"memory": True}),
    "-T 60": ("all_reduce", {"timeout": 60}),
}
ITERATIONS, SIZES = 4, (4096, 1 << 20)

Json = dict[str, Any]


# What the ranks do


class Flipped:
    """Collectives that flip one bit of what the last rank has received, on its device, after every call."""

    def __init__(self, inner: Any, point: Point, turn: int) -> None:
        self.inner = inner
        self.element = turn * 7919 % point.counts.recv
        self.bit = turn % (8 * point.datatype.itemsize)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def bind(self, call: Call) -> Callable[[], None]:
        make, width = self.inner.bind(call), call.datatype.itemsize
        word = call.recv.bytes((self.element + 1) * width)[self.element * width :].view(f"u{width}")

        def made() -> None:
            make()
            word[...] ^= word.dtype.type(1 << self.bit)  # CuPy's current stream is the group's

        return made


@contextmanager
def opened(world: World, operation: str, **settings: Any) -> Iterator[session.Session]:
    """Two sizes, unless `settings` say otherwise."""
    chosen = {
        "minbytes": SIZES[0], "maxbytes": SIZES[1], "stepfactor": SIZES[1] // SIZES[0], "iters": ITERATIONS
    } | settings  # fmt: skip
    asked = BenchOptions((operation,), SweepSettings(**chosen))
    colors = [0] * world.size
    with session.opened(world, world.control, asked, operation, MeasurementProgress(), colors) as made:
        yield made


def rows(world: World, operation: str, **settings: Any) -> list[Json]:
    """What was measured, and the memory it took with -M."""
    with opened(world, operation, **settings) as made:
        found = [
            {
                "what": f"{row.datatype} {row.reduction} {row.size} B, root {row.root}",
                "wrong": [placed.wrong for placed in (row.out_of_place, row.in_place)],
                "seconds": [placed.seconds for placed in (row.out_of_place, row.in_place)],
                "iterations": [
                    [*placed.iterations.slowest] if placed.iterations else None
                    for placed in (row.out_of_place, row.in_place)
                ],
            }
            for row in sweep(made.bench)
        ]
        used = made.memory()
    return [{**row, "buffers": used and used.buffers} for row in found]


def misnamed(world: World, operation: str) -> list[str]:
    """In what the findings are not exactly the bit that was flipped on the last rank."""
    culprit, complaints, turn = world.size - 1, [], 0
    with opened(world, operation, minbytes=SIZES[0], maxbytes=SIZES[0]) as made:
        bench, group = made.bench, made.bench.group
        for point in same.points(bench, KEEPING_TYPES, ["sum", "mulsum"]):
            if world.size == 1 and unscaled(point.datatype.name, point.reduction):
                continue
            turn += 1
            flipped = Flipped(group, point, turn)
            bench.group = flipped if world.rank == culprit else group
            findings = measure(bench, point).findings
            source = same.owner(point, operation, world.size, culprit, flipped.element)
            expected = (
                culprit,
                1,
                flipped.element,
                1,
                source,
                1 << flipped.bit,
                str(world.ranks[culprit].device),
            )
            found = [
                (
                    wrong.rank, wrong.count, wrong.offset, wrong.flipped_bits, wrong.source,
                    bits(wrong.got) ^ bits(wrong.expected), wrong.device,
                )
                for wrong in findings
            ]  # fmt: skip
            if found != [expected]:
                complaints.append(f"{point}: found {found}, expected {expected}")
        bench.group = group
    return complaints


def bits(element: str) -> int:
    """Of a finding's value, such as "1.5 (0x3fc00000)"."""
    return int(element.rpartition("(")[2].rstrip(")"), 16)


def unscaled(datatype: str, reduction: str) -> bool:
    """Whether NCCL on a single rank refuses it: there it neither averages nor pre-multiplies 8-bit floats."""
    return datatype.startswith("f8") and reduction in ("avg", "mulsum")


UNSCALED = {"reductions": REDUCTIONS[4:], "datatypes": tuple(DATATYPES)[:10]}


def survey(world: World) -> Json:
    """Everything that can be asked of these ranks, in one launch."""
    small = {"maxbytes": SIZES[0], "iters": 1, "warmup_iters": 0}
    every = {"datatypes": tuple(DATATYPES), "reductions": REDUCTIONS, "root": -1} | small
    scaled = ({},) if world.size > 1 else ({"reductions": REDUCTIONS[:4]}, UNSCALED)
    return {
        "ranks": world.size,
        "gpus": len({rank.device.uuid for rank in world.ranks}),
        "operations": {name: rows(world, name, datatypes=KEEPING_TYPES) for name in SPECS},
        "reductions": {
            name: [row for some in scaled for row in rows(world, name, **{**every, **some})]
            for name in REDUCING
        },
        "variants": {name: rows(world, what, **how) for name, (what, how) in VARIANTS.items()},
        "misnamed": {name: misnamed(world, name) for name in SPECS},
    }


# What the tests ask of them


def gpus() -> int:
    try:
        from meshrun.runner.device import cuda
    except ImportError:
        return 0
    return cuda.count()


def require(ranks: int) -> None:
    if gpus() < ranks:
        pytest.skip(f"needs {ranks} GPUs, {gpus()} are here")
    require_launcher()


def require_launcher() -> None:
    try:
        mpi_launcher.find()
    except MeshrunError as reason:
        pytest.skip(str(reason))


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )


def meshrun(ranks: int, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run([*PROGRAM, "-n", str(ranks), *words.split()], **environment)


def on_ranks(ranks: int, program: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of our own under the launcher of this Python, as `meshrun -n` would start it."""
    launcher = mpi_launcher.find()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        place = Path(folder)
        around = launcher.environment(ranks, {**os.environ, **environment}, place)
        return run([*launcher.command(ranks), sys.executable, *program], **around)


def shown(done: subprocess.CompletedProcess[str]) -> str:
    return f"status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module", params=["one GPU", "all GPUs"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The survey, by one rank in this process or by 4 (or 2) in processes of their own."""
    if request.param == "one GPU":
        world = open_world("cuda")
        try:
            return survey(world)
        finally:
            world.close()
    ranks = 4 if gpus() >= 4 else 2
    require(ranks)
    file = tmp_path_factory.mktemp("survey") / "found.json"
    done = on_ranks(ranks, [__file__, str(file)])
    assert done.returncode == 0, shown(done)
    read: Json = json.loads(file.read_text())
    assert read["gpus"] == ranks
    return read


def wrong(measured: list[Json], in_place: bool) -> list[str]:
    """The rows that are not right."""
    expected = [0, 0 if in_place else None]
    return [f"{row['what']}: #wrong {row['wrong']}" for row in measured if row["wrong"] != expected]


@pytest.mark.parametrize("operation", SPECS)
def test_every_operation_is_right(found: Json, operation: str) -> None:
    measured = found["operations"][operation]
    assert len(measured) == len(KEEPING_TYPES) * len(SIZES)
    assert wrong(measured, SPECS[operation].in_place) == []
    assert all(seconds > 0 for row in measured for seconds in row["seconds"])


@pytest.mark.parametrize("operation", REDUCING)
def test_every_type_and_reduction_is_right(found: Json, operation: str) -> None:
    measured = found["reductions"][operation]
    named = {tuple(row["what"].split()[:2]) for row in measured}
    every = set(itertools.product(DATATYPES, REDUCTIONS))
    if found["ranks"] == 1:
        every = {pair for pair in every if not unscaled(*pair)}
    assert named == every
    assert wrong(measured, in_place=True) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_to_measure_is_right(found: Json, variant: str) -> None:
    operation, settings = VARIANTS[variant]
    measured = found["variants"][variant]
    assert len(measured) == len(SIZES)
    assert wrong(measured, SPECS[operation].in_place) == []
    for row in measured:
        for seconds, singles in zip(row["seconds"], row["iterations"], strict=True):
            assert seconds > 0
            assert (singles is None) == ("per_iter_timing" not in settings)
            assert singles is None or (len(singles) == ITERATIONS and min(singles) > 0)
        assert (row["buffers"] is None) == ("memory" not in settings)
        assert row["buffers"] is None or row["buffers"] >= 2 * SIZES[1]


@pytest.mark.parametrize("operation", SPECS)
def test_one_flipped_bit_is_named_exactly(found: Json, operation: str) -> None:
    assert found["misnamed"][operation] == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_command(ranks: int) -> None:
    require(ranks)
    done = meshrun(ranks, "bench all -b 1K -e 64K -f 8 -n 2 -d bfloat16 --names --device cuda")
    assert done.returncode == 0, shown(done)
    table = [line.split() for line in done.stdout.splitlines() if ROW.fullmatch(line)]
    assert len(table) == 3 * len(SPECS), shown(done)
    assert {cells[-1] for cells in table} == {"0", "N/A"}, shown(done)
    assert {cells[-5] for cells in table} == {"0"}, shown(done)
    assert done.stdout.count(" 0 OK") == len(SPECS)
    assert re.search(r"^# backend: NCCL 2\.\d+\.\d+ \(/\S*libnccl\.so\S*\)$", done.stdout, re.M), shown(done)
    seats = re.findall(
        r"^#  Rank +\d+ Group +0 Pid +\d+ on +\S+ device +(\d+) \[([0-9a-f:]+)\]", done.stdout, re.M
    )
    assert len({*seats}) == ranks, shown(done)


@pytest.mark.parametrize(
    ("words", "lines"), [("pingpong -b 8 -e 1M -f 8", 6), ("scale all_reduce -b 1M -e 1M", 2)]
)
def test_between_two(words: str, lines: int) -> None:
    require(2)
    done = meshrun(2, f"bench {words} --device cuda")
    assert done.returncode == 0, shown(done)
    table = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert len(table) >= lines, shown(done)


@pytest.mark.parametrize("calls", [20, 3000])  # the more, the likelier the other rank waits for its GPU
def test_a_stopped_rank_ends_the_run(tmp_path: Path, calls: int) -> None:
    require(2)
    words = f"bench all_reduce -b 16M -e 16M -n {calls} -N 0 -T {ALLOWED} --device cuda".split()
    with (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [*PROGRAM, "-n", "2", *words], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        pids: dict[int, int] = {}
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if seat := re.match(r"#  Rank +(\d+) Group +\d+ Pid +(\d+) on", line):
                    pids[int(seat[1])] = int(seat[2])
                if ROW.fullmatch(line.rstrip("\n")):
                    break
            assert sorted(pids) == [0, 1], (tmp_path / "errors").read_text()
            os.kill(pids[1], signal.SIGSTOP)
            stopped = time.monotonic()
            process.communicate(timeout=DEADLOCK)
            lasted = time.monotonic() - stopped
            said = (tmp_path / "errors").read_text()
            assert process.returncode == 4, said
            assert lasted < ALLOWED + 10, said
            assert re.search(r"all_reduce float sum, 16777216 B, (in|out-of)-place", said), said
            assert re.search(r"no answer: rank 1\b", said), said
            assert "Traceback" not in said
            assert not any(alive(pid) for pid in pids.values())
        finally:
            for pid in (*pids.values(), process.pid):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


APART = """
import os, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
os.environ["NCCL_HOSTID"] = "host-" + rank  # before CuPy and NCCL are there
from meshrun.launch.cli.main import main
sys.exit(main())
"""


def test_ranks_that_look_like_two_hosts_talk_over_the_network(tmp_path: Path) -> None:
    require(2)
    done = on_ranks(
        2,
        ["-c", APART, "bench", "all", "-b", "64K", "-e", "64K", "-n", "2", "--device", "cuda"],
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_FILE=str(tmp_path / "nccl.%p"),
        NCCL_NET="Socket",
        NCCL_IB_DISABLE="1",
    )
    assert done.returncode == 0, shown(done)
    table = [line.split() for line in done.stdout.splitlines() if ROW.fullmatch(line)]
    assert len(table) == len(SPECS), shown(done)
    assert {cells[-5] for cells in table} == {"0"}, shown(done)
    said = "".join(file.read_text(errors="replace") for file in tmp_path.glob("nccl.*"))
    assert re.search(r"via NET/Socket", said), said[-4000:]
    assert not re.search(r"via (P2P|SHM)", said), said[-4000:]


def test_two_ranks_on_one_gpu_are_refused() -> None:
    require(1)
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    done = meshrun(2, "bench all_reduce -b 1K -e 1K --device cuda", CUDA_VISIBLE_DEVICES=first)
    assert done.returncode == 6, shown(done)  # nccl-tests' status of a wrong use
    assert re.search(r"ranks 0 and 1 on host \S+ are bound to one GPU", done.stderr), shown(done)
    assert "Traceback" not in done.stderr
    assert not [line for line in done.stdout.splitlines() if ROW.fullmatch(line)]


def main() -> int:
    def body(world: World, handler: FailureHandler) -> Json:
        found = survey(world)
        if world.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))
        return {}

    return run_as_rank(body, FailureHandler(debug=True), device="cuda")


if __name__ == "__main__":
    sys.exit(main())

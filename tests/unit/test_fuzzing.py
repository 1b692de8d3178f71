"""Whatever a parser is given, it parses it or raises its own error, in bounded time and memory.

By day a few damaged files for each parser; FUZZ_SECONDS=600 goes on with new ones for so long with each
(`nox -s fuzz`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mutated import mutated

from meshrun.runner.errors import MeshrunError

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300" if SECONDS else "3"))
ENDLESS, STUCK = 60.0, 600.0  # CPU seconds, and seconds, after which a parser is taken not to return
SLOW = 5.0  # CPU seconds for one small input: no parser takes a tenth of a second for a valid one
LARGE = 64 << 20  # bytes that a parser may take for one small input
Parse = Callable[[Any], object]
GOLDEN = Path(__file__).parent / "validate" / "report" / "formats" / "golden" / "critical.json"


@dataclass(frozen=True)
class Target:
    """valid: returns what it parses. suffix: of the file that it reads; None: it gets the text or the bytes.
    errors: that it documents."""

    name: str
    valid: Callable[[], bytes]
    parse: Parse
    suffix: str | None = None
    errors: tuple[type[Exception], ...] = (MeshrunError,)


def texts(
    name: str, parse: Callable[[str], object], *valid: str, errors: Any = (MeshrunError,)
) -> list[Target]:
    of = functools.partial(
        Target, parse=lambda content: parse(content.decode("utf-8", "replace")), errors=errors
    )
    return [of(f"{name} {one}", (lambda one=one: one.encode())) for one in valid]


# What is read, and its valid files.


def raw(path: Path) -> object:
    """Open a file without a header, as an array of 6 x 8 float32."""
    from meshrun.runner.options.form import Form

    return whole(path, Form((6, 8), "float32"))


def whole(path: Path, form: Any = None) -> object:
    """Open an array, and read its first rows."""
    from meshrun.runner.region import Region
    from meshrun.runner.storage.formats.registry import open_source

    source = open_source(path, form)
    shape = (min(source.shape[0], 4), *source.shape[1:]) if source.shape else ()
    if source.shape and 0 < int(np.prod(shape, dtype=object)) <= 1 << 20:
        region = Region((0,) * len(shape), shape)
        source.read(region, np.empty(shape, source.dtype))
    return source


def opened(path: Path) -> object:
    """Open a picture by its header, as a plan does."""
    from meshrun.runner.storage.formats.registry import open_source

    return open_source(path)


def image(suffix: str, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turned
    picture = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).convert(mode)
    picture.save(out, suffix, exif=exif, **options)
    return out.getvalue()


def npy(order: Any = "C") -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(np.arange(48, dtype=np.float32).reshape(6, 8), order=order))
    return out.getvalue()


def tiff() -> bytes:
    tifffile = pytest.importorskip("tifffile")
    out = io.BytesIO()
    tifffile.imwrite(out, np.arange(48, dtype=np.uint16).reshape(6, 8))
    return bytes(out.getvalue())


def hdf5(**filters: Any) -> bytes:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset("x", data=np.arange(48.0).reshape(6, 8), chunks=(2, 8), **filters)
    return out.getvalue()


def zarr_array(version: int, content: bytes, folder: Path) -> object:
    name = "zarr.json" if version == 3 else ".zarray"
    shutil.rmtree(folder / "a.zarr", ignore_errors=True)
    (folder / "a.zarr").mkdir()
    (folder / "a.zarr" / name).write_bytes(content)
    return whole(folder / "a.zarr")


def zarr_header(version: int) -> bytes:
    zarr = pytest.importorskip("zarr")
    with tempfile.TemporaryDirectory() as folder:
        zarr.create_array(f"{folder}/a", shape=(6, 8), chunks=(2, 8), dtype="f4", zarr_format=version)
        return (Path(folder) / "a" / ("zarr.json" if version == 3 else ".zarray")).read_bytes()


def journal_identity(path: Path) -> object:
    from meshrun.runner.storage.journal import Journal

    journal = Journal(path.with_suffix(""))
    journal.folder.mkdir(exist_ok=True)
    shutil.copy(path, journal.folder / "identity.json")
    kept = journal.kept()
    if kept is not None:
        journal.check(kept, {"rows": 3, "inputs": {"a": 1}})
    return kept


def journal_log(path: Path) -> object:
    from meshrun.runner.storage.journal import Journal

    journal = Journal(path.with_suffix(""))
    journal.folder.mkdir(exist_ok=True)
    shutil.copy(path, journal.folder / "run-0.log")
    return journal.finished({"n1/5c0a2d6e"})


def a_log() -> bytes:
    from meshrun.runner.storage.journal import Journal

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "out.npy")
        journal.folder.mkdir()
        log = journal.log("run-0", "n1/5c0a2d6e")
        log.done(3)
        log.done(12)
        log.synced(1)
        log.close()
        return log.path.read_bytes()


def checkpoint(path: Path) -> object:
    from meshrun.runner.storage.checkpoint_folder import CheckpointFolder

    folder = path.parent / "saved.checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "step-4").mkdir(parents=True)
    (folder / "step-4" / "u.npy").write_bytes(npy())
    shutil.copy(path, folder / "step-4" / "state.json")
    found = CheckpointFolder(path.parent / "saved").newest()
    return found


STATE = {
    "step": 4,
    "fields": ["u"],
    "fingerprint": {"job": "heat"},
    "colors": None,
    "values": {"largest": 1.5},
}


def machine_rates() -> bytes:
    from meshrun.runner.forecast.machine import nominal_cpu, save

    with tempfile.TemporaryDirectory() as folder:
        save(nominal_cpu(4, 1 << 30), Path(folder) / "r.json")
        return (Path(folder) / "r.json").read_bytes()


def recorded() -> bytes:
    from meshrun.runner.recorder.ring import Recorder

    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(
            Path(folder) / "r",
            {"run": "r", "rank": 0, "size": 2, "host": "n1", "device": "CPU", "command": "run"},
        )
        world = recorder.group("world", [0, 1])
        recorder.leave(recorder.enter(recorder.name("barrier"), 0, world, 7))
        recorder.count(world, 1, 1, 0)
        content = recorder.path.read_bytes()
        recorder.close()
        return content


def recording(path: Path) -> object:
    from meshrun.runner.recorder import ring

    return ring.about_of(path), ring.read(path)


def a_snapshot() -> bytes:
    from meshrun.runner.recorder import ring
    from meshrun.runner.recorder.snapshot import snapshot, to_json

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        path.write_bytes(recorded())
        found = ring.read(path)
    assert found is not None
    return json.dumps(to_json(snapshot(found, "running"))).encode()


def rank_snapshot(content: bytes) -> object:
    """`json.loads` is the caller's; the rest is ours."""
    from meshrun.runner.recorder.snapshot import from_json

    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return from_json(document) if isinstance(document, dict) else None


def report(content: bytes) -> object:
    """Likewise."""
    from meshrun.jobs.validate.report.formats import json as form

    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return form.read(document)


def a_baseline(suffix: str) -> bytes:
    from meshrun.jobs.validate.baseline.baseline_run import BaselineRun
    from meshrun.jobs.validate.baseline.compare import format_of

    figures = {("gpu", "memory", ""): 3e12, ("gpu", "memory", "host c7, GPU 3"): 2.9e12}
    new = BaselineRun("2026-01-01", (("c7", 8),), ("H200",), {"numpy": "2"}, {"gpu memory": 8}, figures)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"b{suffix}"
        format_of(path).add(path, new)
        return path.read_bytes()


def surface(binary: bool) -> bytes:
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    faces = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]]
    if binary:
        content = b"\0" * 80 + len(faces).to_bytes(4, "little")
        return content + b"".join(b"\0" * 12 + points[face].tobytes() + b"\0\0" for face in faces)
    lines = ["solid t"]
    for face in faces:
        corners = [f"   vertex {x} {y} {z}" for x, y, z in points[face]]
        lines += [" facet normal 0 0 0", "  outer loop", *corners, "  endloop", " endfacet"]
    return "\n".join([*lines, "endsolid t", ""]).encode()


NCCL_TESTS = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n"
    "#  Rank  0 Group  0 Pid   6899 on         c7 device  0 [0x04] NVIDIA H100 80GB HBM3\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "           8             2     float     sum      -1"
    "    31.45    0.00    0.00      0    31.52    0.00    0.00    N/A\n"
    "# Out of bounds values : 0 OK\n"
    "# Avg bus bandwidth    : 20.4175 \n"
)


def bench_document() -> bytes:
    from meshrun.jobs.bench.collectives.config import SweepSettings
    from meshrun.jobs.bench.collectives.output.nccl_tests_json import record
    from meshrun.jobs.bench.collectives.results import Footer, Header, PlacementResult, RankDevice, ResultRow

    header = Header("all_reduce_perf", 22809, "MPI", (RankDevice(0, 0, 7, "c7", 0, "0000:00:00", "CPU"),))
    placement = PlacementResult(12.5e-6, 1.5e-6, 1.25, 1.5, 0)
    rows = [ResultRow(8, 2, "float", "sum", -1, placement, placement, finished=1750000000.0)]
    return record(SweepSettings(), header, rows, Footer(0, 1.5), ["meshrun"], {}, 0.0, 1.0).encode()


def message(content: bytes) -> object:
    """What a peer sends, before and after it has proven itself."""
    from meshrun.runner.world.watchdog.channel import Connection, Handshake

    found = []
    for secured in (False, True):
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(Unnamed(ours))
            if secured:
                connection.secure(Handshake("token", "a", "b", 1), "root", "peer")
            theirs.sendall(content[: 1 << 16])
            theirs.shutdown(socket.SHUT_WR)
            found.append(connection.receive(0.01) if secured else connection.take())
            connection.close()
    return found


class Unnamed:
    """A socket pair's end, which has no TCP options."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def setsockopt(self, *option: int) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)


def lazily(module: str, name: str, *more: Any) -> Parse:
    """A function, imported when it is called."""

    def parse(content: Any) -> object:
        found = __import__(module, fromlist=["_"])
        for part in name.split("."):
            found = getattr(found, part)
        return found(content, *more)

    return parse


def settings_file(path: Path) -> object:
    from meshrun.launch.settings import read_settings

    return read_settings({}, (path,))


def matrix(path: Path) -> object:
    from meshrun.jobs.bench.collectives.specs import read_matrix

    return read_matrix(path, 1.0, 2)


def fleet(path: Path) -> object:
    from meshrun.jobs.validate.simulation.spec import parse_fleet

    return parse_fleet(str(path))


FLEET = {"hosts": 4, "gpus": 2, "fault": ["nic:h3:1:0.6"]}
RATES = {
    "gpus": [{"model": "H.*", "memory": 3000.0, "links": 18}],
    "shares": {"host pairs flows": 0.9},
    "network": 50,
}
USAGE = (click.UsageError,)
TARGETS = [
    Target("npy", npy, whole, ".npy"),
    Target("raw", lambda: bytes(6 * 8 * 4), raw, ".raw"),
    Target("npy F", functools.partial(npy, "F"), whole, ".npy"),
    Target("tiff", tiff, whole, ".tiff"),
    Target("hdf5", hdf5, whole, ".h5"),
    Target("hdf5 gzip", functools.partial(hdf5, compression="gzip", shuffle=True), whole, ".h5"),
    Target("png", functools.partial(image, "png"), whole, ".png"),
    Target("jpeg", functools.partial(image, "jpeg"), whole, ".jpg"),
    Target("bmp", functools.partial(image, "bmp"), whole, ".bmp"),
    Target("tiff strips", functools.partial(image, "tiff", compression="tiff_deflate"), whole, ".tif"),
    Target("tiff palette", functools.partial(image, "tiff", "P"), whole, ".tif"),
    *(
        Target(f"{kind} header", functools.partial(image, kind, mode), opened, f".{kind}")
        for kind, mode in (("png", "P"), ("jpeg", "CMYK"), ("tiff", "P"), ("bmp", "RGB"))
    ),
    *(
        Target(
            f"zarr {version}",
            functools.partial(zarr_header, version),
            lambda path, version=version: zarr_array(version, path.read_bytes(), path.parent),
            ".header",
        )
        for version in (2, 3)
    ),
    Target(
        "journal identity",
        lambda: json.dumps({"rows": 3, "inputs": {"a": 1}}).encode(),
        journal_identity,
        ".id",
    ),
    Target("journal log", a_log, journal_log, ".lines"),
    Target("checkpoint", lambda: json.dumps(STATE).encode(), checkpoint, ".json"),
    Target(
        "baseline json",
        lambda: a_baseline(".json"),
        lazily("meshrun.jobs.validate.baseline.compare", "read"),
        ".json",
    ),
    Target(
        "baseline sqlite",
        lambda: a_baseline(".db"),
        lazily("meshrun.jobs.validate.baseline.compare", "read"),
        ".db",
    ),
    Target("report", GOLDEN.read_bytes, report),
    Target(
        "nccl-tests text",
        NCCL_TESTS.encode,
        lazily("meshrun.jobs.bench.collectives.output.reader", "read_each"),
        ".txt",
    ),
    Target(
        "bench json",
        bench_document,
        lazily("meshrun.jobs.bench.collectives.output.reader", "read_each"),
        ".json",
    ),
    Target(
        "settings", b'network = "eth0"\n[slurm]\npartition = "gpu"\n'.strip, settings_file, ".toml", USAGE
    ),
    Target("fleet json", json.dumps(FLEET).encode, fleet, ".json"),
    Target("fleet toml", b'hosts = 4\ngpus = 2\nfault = ["nic:h3:1:0.6"]\n'.strip, fleet, ".toml"),
    Target(
        "known rates",
        json.dumps(RATES).encode,
        lazily("meshrun.jobs.validate.health.known_rates", "known_rates"),
        ".json",
    ),
    Target("machine rates", machine_rates, lazily("meshrun.runner.forecast.machine", "load"), ".json"),
    Target(
        "stl text",
        functools.partial(surface, False),
        lazily("meshrun.jobs.airflow.shapes.stl", "read"),
        ".stl",
    ),
    Target(
        "stl binary",
        functools.partial(surface, True),
        lazily("meshrun.jobs.airflow.shapes.stl", "read"),
        ".stl",
    ),
    Target("recorder", recorded, recording, ".ring"),
    Target("messages", b'{"rank": 1, "challenge": "ab"}\n{"beat": true}\n'.strip, message),
    Target(
        "hostfile",
        b"n1 slots=8\nn2:4 # spare\nn3\n".strip,
        lazily("meshrun.launch.host_list", "read_hostfile"),
        ".hosts",
        (ValueError,),
    ),
    Target("traffic matrix", b"0 16\n32 0\n".strip, matrix, ".txt"),
    *texts("size", lazily("meshrun.runner.options.values", "parse_size"), "1.5G", "64M"),
    *texts(
        "nccl size",
        lazily("meshrun.jobs.measure.sizes", "parse_nccl_tests_size"),
        "8M",
        "1K",
        errors=(MeshrunError, ValueError),
    ),
    *texts("hosts", lazily("meshrun.launch.host_list", "parse_hosts"), "a:8,b:8", errors=(ValueError,)),
    *texts("shape", lazily("meshrun.launch.spec", "parse_shape"), "2x8", errors=(ValueError,)),
    *texts(
        "input shape",
        lazily("meshrun.runner.options.form", "parse_shape"),
        "512x256",
        errors=(MeshrunError, ValueError),
    ),
    *texts("grid", lazily("meshrun.runner.plan.grid", "parse_grid", (64, 64), 4), "2x2", "0x1"),
    *texts("interval", lazily("meshrun.runner.options.step_options", "parse_interval"), "4", "10min"),
    *texts("until", lazily("meshrun.runner.options.step_options", "parse_until"), "1e-6", "steady:1e-3"),
    *texts("range", lazily("meshrun.runner.options.step_options", "parse_range"), "0:1.5"),
    *texts("dtype", lazily("meshrun.runner.storage.formats.declared_form", "parse_dtype"), "float32", ">i2"),
    *texts("axes", lazily("meshrun.jobs.transforms.axes", "parse_axes"), "1,0,2"),
    *texts("expression", lazily("meshrun.jobs.filters.expression", "parse"), "x * 2 + sqrt(x)"),
    *texts("weights", lazily("meshrun.jobs.filters.grayscale", "parse"), "0.299,0.587,0.114"),
    *texts("kernel", lazily("meshrun.jobs.filters.weights", "read", True), "1,2,1;2,4,2;1,2,1"),
    *texts("airfoil", lazily("meshrun.jobs.airflow.shapes.airfoil", "parse"), "2412@8"),
    *texts(
        "rungs",
        lazily("meshrun.jobs.validate.cli", "parse_rungs"),
        "gpu,host",
        errors=(MeshrunError, click.UsageError, ValueError),
    ),
    *texts(
        "duration",
        lazily("meshrun.jobs.validate.ladder.budget", "parse_duration"),
        "30s",
        "5m",
        errors=(MeshrunError, ValueError),
    ),
    *texts(
        "fleet words",
        lazily("meshrun.jobs.validate.simulation.spec", "parse_fleet"),
        "hosts=4,gpus=2,fault=nic:h3:1:0.6",
    ),
    *texts(
        "channels",
        lazily("meshrun.jobs.bench.collectives.options", "parse_channels"),
        "1,2,4",
        errors=(MeshrunError, click.UsageError, ValueError),
    ),
    *texts(
        "pairs",
        lazily("meshrun.jobs.bench.collectives.commands.pingpong", "parse_pairs", 4),
        "0-1,2-3",
        errors=(MeshrunError, click.UsageError, ValueError),
    ),
    Target("snapshot", a_snapshot, rank_snapshot, errors=(KeyError, TypeError, ValueError, OverflowError)),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_whatever_it_is_given(target: Target, tmp_path: Path) -> None:
    valid = target.valid()
    assert look(target, valid, tmp_path, raises=False) is not None
    fuzz(target, tmp_path, mutated(valid))


def fuzz(target: Target, folder: Path, inputs: st.SearchStrategy[bytes]) -> None:
    """Look at inputs: a few, or for FUZZ_SECONDS."""

    def try_it(content: bytes) -> None:
        look(target, content, folder)

    run = settings(
        max_examples=EXAMPLES,
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        phases=[Phase.generate, *([Phase.shrink] if SECONDS else [])],
        suppress_health_check=list(HealthCheck),
    )(given(inputs)(try_it))
    end = time.monotonic() + SECONDS
    while True:
        (seed(secrets.randbits(64))(run) if SECONDS else run)()
        if time.monotonic() >= end:
            return


def loops(content: bytes) -> None:
    """A parser that never returns for some input, and takes any error of its own for a damaged file."""
    while b"7" in content:
        with contextlib.suppress(Exception):
            int(content)


def test_an_input_for_which_a_parser_loops_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hypothesis repeats an input that failed; the time limit of the test interrupts only one of them."""
    monkeypatch.setitem(globals(), "ENDLESS", 0.2)
    with pytest.raises(pytest.fail.Exception, match=r"loops does not return for b'17'") as failed:
        fuzz(Target("loops", lambda: b"1", loops), tmp_path, st.sampled_from([b"1", b"17"]))
    assert "content=b'17'" in "".join(failed.value.__notes__)


def test_a_parser_that_waits_ends_the_process(tmp_path: Path) -> None:
    code = (
        "import test_fuzzing, threading, pathlib; test_fuzzing.STUCK = 0.5\n"
        "def waits(content): threading.Event().wait()\n"
        "test_fuzzing.look(test_fuzzing.Target('waits', bytes, waits), b'17', pathlib.Path('.'))"
    )
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parent / "facts", here.parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr
    assert "in waits" in done.stderr
    assert (tmp_path / "given").read_bytes() == b"17"


DEEP = b"[" * 100_000
DIGITS = b"1" * 5000
ZARR_3 = """{"shape": [6, 8], "data_type": "float32",
"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 8]}},
"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0.0,
"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {}, "zarr_format": 3,
"node_type": "array", "storage_transformers": []}"""
FOUND = [  # by the test above; each was another exception than the parser's own
    ("size 64M", DIGITS),
    ("grid 2x2", b"2x" + DIGITS),
    ("pairs 0-1,2-3", b"[\n" * 2000),  # a line for each
    ("input shape 512x256", DIGITS + b"x2"),
    ("interval 4", DIGITS),
    ("stl binary", b"\0" * 34),  # as long as 84 bytes and 50 for each of -1 triangles
    ("journal identity", b'{"rows": ' + DEEP),
    ("bench json", b'{"version": ' + DEEP),
    (
        "bench json",
        b'{"version": 3, "average_bus_bandwidth": {"bandwidth": 1}, "nccl_version": 1e999, "results": []}',
    ),
    ("fleet json", b'{"hosts": ' + DEEP),
    ("fleet toml", b"hosts = " + DEEP),
    ("known rates", b'{"gpus": ' + DEEP),
    ("machine rates", b'{"schema": ' + DEEP),
    ("checkpoint", b"[]"),
    ("checkpoint", b'{"step": 1e999, "fields": ["u"], "fingerprint": {"job": "heat"}, "values": {}}'),
    (
        "snapshot",
        b'{"rank": 0, "host": "n1", "device": "CPU", "state": "running", "idle": 0, "operations": [], '
        b'"collectives": {}, "groups": {}, "messages": {"w": {"1": [1e999, 0]}}, "at": null, "total": 1}',
    ),
    (
        "snapshot",
        b'{"rank": 0, "host": "n1", "device": "CPU", "state": "running", "idle": 0, "operations": [], '
        b'"collectives": {}, "groups": null, "messages": {}, "at": null, "total": 1}',
    ),
    (
        "snapshot",
        b'{"rank": 0, "host": "n1", "device": "CPU", "state": "running", "idle": 0, "operations": [], '
        b'"collectives": {}, "groups": {}, "messages": {"w": [1]}, "at": null, "total": 1}',
    ),
    ("fleet words hosts=4,gpus=2,fault=nic:h3:1:0.6", b"hosts=4,gpus=2,fault=nic:h" + DIGITS + b":1:0.6"),
    ("nccl-tests text", NCCL_TESTS.replace(" #wrong", "", 1).encode()),
    ("nccl-tests text", NCCL_TESTS.replace("   0   ", "   1e999", 1).encode()),
    ("settings", b"a = " + DIGITS),
    ("nccl size 8M", 20 * DIGITS + b"x"),  # took minutes
    ("nccl size 8M", b"1" + b" " * 100_000 + b"x"),
    ("zarr 3", ZARR_3.encode()),
    ("npy", b"\x93NUMPY\x02\0\0\0\0\x20{'descr': '<f4', 'fortran_order': False, 'shape': (6, 8), }"),
]


def test_a_refused_fault_is_not_repeated_in_full() -> None:
    from meshrun.jobs.validate.simulation.spec import parse_fleet

    for fault in (f"nic:h{'1' * 5000}:1:0.6", f"nic:h1:1:{'1' * 5000}"):
        with pytest.raises(MeshrunError) as refused:
            parse_fleet(f"hosts=4,gpus=2,fault={fault}")
        assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(("name", "content"), FOUND, ids=lambda one: str(one)[:24])
def test_what_was_found_stays_mended(name: str, content: bytes, tmp_path: Path) -> None:
    (target,) = (one for one in TARGETS if one.name == name)
    with pytest.raises(target.errors):
        look(target, content, tmp_path, raises=False)


def test_a_damaged_recorder_is_none(tmp_path: Path) -> None:
    from meshrun.runner.recorder import ring

    path, content = tmp_path / "r", recorded()
    for old, new in ((b'"rank"', b'"wrong'), (b'"rank"', b'"name"'), (b'"world", [[0', b'"world", [["')):
        assert old in content
        path.write_bytes(content.replace(old, new))
        found = ring.read(path)
        assert found is None or old.startswith(b'"world')
    with pytest.raises(ValueError, match="more than"):
        ring.members_of([[0, 1, 1 << 40]])


@contextlib.contextmanager
def ended(failure: str) -> Iterator[None]:
    """Fail in the body of the `with` statement after ENDLESS seconds of CPU time, each time; end the process
    after STUCK seconds."""

    def fail(*_: object) -> None:
        pytest.fail(failure, pytrace=False)  # no Exception, which a parser might catch

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, ENDLESS)
    faulthandler.dump_traceback_later(STUCK, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def look(target: Target, content: bytes, folder: Path, *, raises: bool = True) -> object:
    """Parse; fail for any other error than the documented ones, and for one that is more than a sentence.

    Also for a parser that does not return: with the input, if it computes in Python. Otherwise the process
    ends with the parser's line on stderr, and the file `given` in the test's folder is the input.
    """
    (folder / "given").write_bytes(content)
    given: Any = content
    if target.suffix is not None:
        given = folder / f"in{target.suffix}"
        given.write_bytes(content)
    sentence, found, begin = "", None, time.process_time()
    tracemalloc.start()
    try:
        with ended(f"{target.name} does not return for {content[:1000]!r}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = target.parse(given)
    except target.errors as failure:
        sentence = str(failure) if isinstance(failure, MeshrunError) else ""
        assert len(sentence) < 4000, "an error that repeats its input"
        if not raises:
            raise
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.process_time() - begin < SLOW
    assert peak < LARGE, f"{peak:,} bytes for {len(content):,}"
    return found

"""The copy between GPUs by their threads, and `bench memory p2p` on as many GPUs as there are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.jobs import kernels
from meshrun.jobs.bench.copy.engines import Copies
from meshrun.jobs.bench.lessons.p2p.methods import peer_copies
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import MeshrunError

cupy = pytest.importorskip("cupy", reason="needs CuPy")

SIZES = (1, 15, 16, 31, 33, 4097 * 129, (1 << 22) + 5)
GUARD, POISON = 64, 0xA5
# A line of the kernel, and one that is wrong.
BROKEN = {
    "drops the tail": ("k < nbytes; k += threads", "k < nbytes - 1; k += threads"),
    "reads its neighbour": ("loaded[j] = source[i + j * threads]", "loaded[j] = source[i]"),
    "skips the rest of the vectors": ("target[i] = source[i];", "if (i) target[i] = source[i];"),
}


@pytest.fixture
def box() -> Any:
    opened = open_box()
    yield opened
    opened.close()


def wrong(box: Any, nbytes: int, source_gpu: int = 0, target_gpu: int = 0, gpu: int = 0) -> int:
    """Bytes that a copy by GPU `gpu` gets wrong, those behind the target included."""
    data = np.random.default_rng().integers(0, 256, nbytes, np.uint8)
    source, target = (box.allocate("device", nbytes + GUARD, at) for at in (source_gpu, target_gpu))
    with box.on(source_gpu):
        box.array(source)[:nbytes] = cupy.asarray(data)
        cupy.cuda.runtime.deviceSynchronize()
    with box.on(target_gpu):
        box.array(target)[...] = POISON
        cupy.cuda.runtime.deviceSynchronize()
    stream = box.stream(gpu)
    peer_copies(Copies(box, box.gpus[gpu], target, source, nbytes, 1, stream))
    box.synchronize(stream)
    with box.on(target_gpu):
        got = box.array(target).get()
    expected = np.concatenate([data, np.full(GUARD, POISON, np.uint8)])
    return int(np.count_nonzero(got != expected))


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_copy_by_threads(box: Any, nbytes: int) -> None:
    assert wrong(box, nbytes) == 0


@pytest.mark.parametrize("pulls", [True, False])
def test_a_copy_between_two_gpus_by_threads(box: Any, pulls: bool) -> None:
    if len(box.gpus) < 2:
        pytest.skip("needs two GPUs")
    actor, other = (1, 0) if pulls else (0, 1)
    if not box.connect(actor, other):
        pytest.skip("no peer access")
    for nbytes in SIZES:
        assert wrong(box, nbytes, 0, 1, actor) == 0


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_is_noticed(
    box: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, changed = BROKEN[fault]
    text = (kernels.FOLDER / "peer.cu").read_text()
    assert text.count(right) == 1
    (tmp_path / "peer.cu").write_text(text.replace(right, changed))

    def load(file: str, instance: str) -> Callable[..., None]:
        return meshrun.kernel(tmp_path / file, instance)

    monkeypatch.setattr(kernels, "load", load)
    assert any(wrong(box, nbytes) for nbytes in SIZES)


def lesson(ranks: int, tmp_path: Path, *words: str) -> Any:
    """The JSON of `bench memory p2p` on so many ranks."""
    try:
        mpi_launcher.find()
    except MeshrunError as reason:
        pytest.skip(str(reason))
    record = tmp_path / "p2p.json"
    sizes = ("-b", "4099", "-e", str(5 << 20), "-n", "2", "-J", str(record))
    command = [*PROGRAM, "-n", str(ranks), "bench", "memory", "p2p", *sizes, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return json.loads(record.read_text())


def test_every_method_between_all_gpus(tmp_path: Path) -> None:
    ranks = cupy.cuda.runtime.getDeviceCount()
    if ranks < 2:
        pytest.skip("needs two GPUs")
    found = lesson(ranks, tmp_path)
    assert found["mismatches"] == []
    assert found["messages"].startswith("NCCL")
    methods = {one["method"] for one in found["transfers"]}
    missing = {method for cases in found["not_measured"].values() for method, *_ in cases}
    assert methods | missing == {"copy engine", "kernel stores", "kernel loads", "NCCL", "through host"}
    assert {"NCCL", "through host"} <= methods
    reached = all(
        cupy.cuda.runtime.deviceCanAccessPeer(a, b) for a in range(ranks) for b in range(ranks) if a != b
    )
    assert not (reached and missing), found["not_measured"]

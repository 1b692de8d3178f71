"""Streamed runs in bad and tight places: a full disk, an input that changes, little memory, a slow rank.

`meshrun -n N run ...` as a user runs it, under whichever MPI this environment has.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import nightly, small_disk, wait_for
from streamed import (
    HOST,
    KEPT,
    Site,
    content,
    needs_mpi,
    site_at,
    smoothed,
)

MIB = 1 << 20
RANKS = [nightly(1), pytest.param(2, marks=needs_mpi)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


@pytest.fixture
def disk(site: Site) -> Iterator[Path]:
    """A file system of 128 KiB in the folder `disk`."""
    with small_disk(site.work / "disk", 128 << 10) as folder:
        yield folder


@pytest.mark.parametrize("ranks", RANKS)
def test_a_disk_too_small_for_the_output_is_told_before_the_work(site: Site, disk: Path, ranks: int) -> None:
    """The output's 192 kB are asked for at the beginning."""
    status, lines = site.run(site.words(ranks, output="disk/out.npy"))
    assert status == 1
    (sentence,) = lines
    found = re.search(
        r"cannot write disk/out.npy: No space left on device, ([\d,]+) bytes free there, "
        r"expected ([\d,]+) bytes",
        sentence,
    )
    assert found, sentence
    free, needed = (int(number.replace(",", "")) for number in found.groups())
    assert free <= 128 << 10 < 48 * 500 * 8 < needed
    assert site.calls == []
    assert content(disk) == {}


@pytest.mark.parametrize("ranks", RANKS)
def test_a_disk_that_fills_up_keeps_what_is_finished(site: Site, disk: Path, ranks: int) -> None:
    """A Zarr store grows: five chunks of 16 MiB that do not compress, and room for two and a half."""
    zarr = pytest.importorskip("zarr")
    array = np.random.default_rng(1).random((640, 16384))
    np.save(site.work / "in.npy", array)
    resize(disk, "40m")
    words = site.words(ranks, "--depth", "1", output="disk/out.zarr", cut=())
    status, lines = site.run(words)
    assert status == 1
    sentence, kept = lines
    assert "cannot write disk/out.zarr: No space left on device" in sentence
    assert re.search(r"[\d,]+ bytes free there, expected [\d,]+ bytes", sentence)
    assert kept == KEPT
    assert (disk / "out.zarr.journal").is_dir()
    assert not (disk / "out.zarr").exists()

    resize(disk, "128m")
    stream = site.finish([*words, "--resume"])["stream"]
    assert stream["chunks"] == 5
    assert stream["resumed"] >= 1
    assert {path.name for path in disk.iterdir()} == {"out.zarr"}
    found = zarr.open_array(disk / "out.zarr", mode="r")[...]
    np.testing.assert_allclose(found, smoothed(array), rtol=1e-14, atol=1e-14)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        (1, "touched"),
        pytest.param(2, "written", marks=needs_mpi),
        nightly(1, "written"),
        pytest.param(2, "touched", marks=[needs_mpi, pytest.mark.nightly]),
    ],
)
def test_an_input_that_changes_while_it_is_read(site: Site, ranks: int, how: str) -> None:
    old, source = (site.work / "out.npy").read_bytes(), site.work / "in.npy"
    process = site.begin(site.words(ranks), STAGE=f"hold,{ranks - 1},4")
    wait_for(lambda: site.failing)
    if how == "written":
        with open(source, "r+b") as file:
            file.seek(-8, 2)
            file.write(bytes(8))
    else:
        source.touch()
    (site.notes / "go").touch()
    status, lines = site.end(process)
    assert status == 1
    # Alone: no run with this input goes on with what the other input has made.
    (sentence,) = lines
    assert "in.npy changed while it was read" in sentence
    assert (site.work / "out.npy").read_bytes() == old
    assert "its unfinished run differs in 1 value(s): got inputs.block.changed_ns" in site.refused(
        site.words(ranks, "--resume")
    )

    command = re.search(r"to start from the beginning: (rm -r .*), then", sentence)[1]
    subprocess.run(shlex.split(command), cwd=site.work, check=True)
    assert site.finish(site.words(ranks))["stream"]["resumed"] == 0
    expected = smoothed(np.load(source))
    np.testing.assert_allclose(np.load(site.work / "out.npy"), expected, rtol=1e-14)


@needs_mpi
def test_an_input_that_becomes_shorter_while_it_is_read(site: Site) -> None:
    """An error, not a signal, which a map of the file would bring."""
    process = site.begin(site.words(2), STAGE="hold,1,4")
    wait_for(lambda: site.failing)
    (site.work / "in.npy").write_bytes((site.work / "in.npy").read_bytes()[:1000])
    (site.notes / "go").touch()
    status, lines = site.end(process)
    assert status == 1
    assert re.match(
        rf"meshrun: \[rank \d, host {HOST}, CPU\] in.npy became shorter while it was read", lines[0]
    )
    assert lines[1:] == [KEPT]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_truncated_input_is_refused(site: Site, ranks: int) -> None:
    source = site.work / "in.npy"
    source.write_bytes(source.read_bytes()[:-8])
    sentence = site.refused(site.words(ranks))
    assert "in.npy is truncated: got 192,120 bytes, expected 192,128" in sentence


@pytest.mark.parametrize("ranks", RANKS)
def test_memory_stays_below_the_cap_whatever_the_size(site: Site, ranks: int) -> None:
    """512 MiB through ranks that may use 64 MiB each; 200 MiB are Python's, NumPy's and MPI's."""
    shape, source, target = (16384, 8192), site.work / "in.npy", site.work / "out.npy"
    array = np.lib.format.open_memmap(source, "w+", np.float32, shape)  # a file with holes
    some = np.random.default_rng(2).integers(0, shape[0], 64)
    array[some] = np.random.default_rng(3).random((64, shape[1]), np.float32)
    array.flush()
    del array
    try:
        stream = site.finish(site.words(ranks, cut=("--host-memory", "64M")), PAUSE="0")["stream"]
        assert stream["chunks"] > 8 * ranks
        peaks = [int(path.read_text()) for path in site.notes.glob("peak-*")]
        assert len(peaks) == ranks
        assert max(peaks) < 264 * MIB
        found, wanted = np.load(target, mmap_mode="r"), np.load(source, mmap_mode="r")
        for row in some:
            rows = slice(max(row - 1, 0), row + 2)
            inside = slice(row - rows.start, row - rows.start + 1)
            expected = smoothed(np.asarray(wanted[rows]))[inside]
            np.testing.assert_allclose(found[row : row + 1], expected, rtol=1e-5, atol=1e-5)
    finally:
        source.unlink()
        target.unlink()


@needs_mpi
def test_a_chunk_that_a_rank_computes_wrong_is_computed_again_by_the_other(site: Site) -> None:
    words = site.words(2, "--static", "--verify", "full")
    process = site.begin(words, STAGE="wrong,1,3")  # rank 1 has chunks 12 to 23
    status, lines = site.end(process)
    assert status == 0, lines
    warning, *_ = lines  # the summary
    assert re.fullmatch(
        rf"meshrun: warning: \[rank 1, host {HOST}, CPU\] computed 1 chunk wrong, "
        rf"and \[rank 0, host {HOST}, CPU\] "
        r"right: cell \[\d+, 7\] of chunk \d+ was .*, not .*\. Try: meshrun validate, to test .*",
        warning,
    )
    expected = smoothed(np.load(site.work / "in.npy"))
    np.testing.assert_allclose(np.load(site.work / "out.npy"), expected, rtol=1e-14, atol=1e-14)
    (redone,) = json.loads((site.work / "record.json").read_text())["verify"]["redone"]
    assert redone["chunk"] in range(12, 24)
    assert (redone["first"][:7], redone["second"][:7]) == ("[rank 1", "[rank 0")


@needs_mpi
def test_a_slow_rank_does_not_set_the_pace(site: Site) -> None:
    """Rank 0 takes ten times as long for a chunk: two ranks and a tenth do the work of three."""
    np.save(site.work / "in.npy", np.random.default_rng(4).random((180, 500)))
    words, pace = site.words(3, "--depth", "1"), {"PAUSE": "0.012"}
    even = site.finish(words, **pace)
    dynamic = site.finish(words, **pace, SLOWER="10")
    static = site.finish([*words, "--static"], **pace, SLOWER="10")
    assert static["stream"]["own"] == [30, 30, 30]
    assert static["stream"]["taken_over"] == [0, 0, 0]
    assert dynamic["stream"]["own"][0] < 15
    assert sum(dynamic["stream"]["own"]) + sum(dynamic["stream"]["taken_over"]) == 90
    assert dynamic["seconds"] - even["seconds"] < (static["seconds"] - even["seconds"]) / 2

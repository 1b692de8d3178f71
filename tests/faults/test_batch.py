"""A folder of images whose run is killed at any moment, and resumed to the bytes of an undisturbed one."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import nightly
from streamed import Site, content, needs_mpi, site_at

IMAGES = 14
FILES = ("job.py:smooth", "photos", "out", "--json", "record.json")
KEPT = "meshrun: finished images are kept; continue with the same command and --resume"

# The variable STAGE is "WHERE,RANK,CALL": that rank kills itself there, at that call.
JOB = """
import itertools, os, signal, time
from pathlib import Path

import meshrun
from meshrun.runner.maps.folders import engine as image_engine
from meshrun.runner.storage.journal import Journal, Log
from meshrun.runner.storage.formats.flat import FlatSink
from meshrun.runner.maps.folders.images import StreamedFolder

notes = Path(os.environ["MESHRUN_TEST_RUN"])
told = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
place, victim, when = os.environ.get("STAGE", "nowhere,0,0").split(",")
calls = itertools.count(1)


def nothing(*_):
    pass


def write_half(sink, region, array):
    write(sink, region.rows(0, 1), array[:1])


write = FlatSink.write
PLACES = {
    "half a file": (FlatSink, "write", write_half),
    "before its name": (image_engine, "commit", nothing),
    "after its name": (image_engine, "commit", image_engine.commit),
    "before its line": (Log, "done", nothing),
    "after its line": (Log, "done", Log.done),
    "rename": (StreamedFolder, "commit", nothing),
    "renamed": (Journal, "remove", nothing),
}


def die():
    while not any(" done " in path.read_text() for path in Path().glob("*.journal/*.log")):
        time.sleep(0.01)  # other threads are writing images; without a finished one there is no resume
    (notes / f"failing-{told}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


if place in PLACES and told == int(victim):
    owner, name, first = PLACES[place]
    original = getattr(owner, name)

    def planted(*arguments):
        if next(calls) == int(when):
            first(*arguments)
            die()
        return original(*arguments)

    setattr(owner, name, planted)


@meshrun.map_blocks(halo=1, boundary="nearest", split_dependent=True)
def smooth(block, *, out, here):
    with open(notes / "calls", "a") as lines:
        lines.write(f"{here.shape[0]}\\n")
    time.sleep(0.02)  # so that every rank gets some
    if place == "kernel" and told == int(victim) and next(calls) == int(when):
        die()
    out[...] = 2 * block[1:-1, 1:-1] - block[:-2, 1:-1] - block[1:-1, 2:]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A folder of images, number n of n + 2 rows."""
    with site_at(tmp_path) as made:
        (made.work / "job.py").write_text(JOB)
        (made.work / "out.npy").unlink()
        (made.work / "photos").mkdir()
        random = np.random.default_rng(0)
        for number in range(IMAGES):
            np.save(made.work / "photos" / f"{number:02}.npy", random.random((number + 2, 50)))
        yield made


def words(ranks: int, *more: str) -> list[str]:
    return ["-n", str(ranks), "run", *FILES, *more]


def finished(site: Site) -> int:
    """How many images the journal has."""
    logs = [path.read_text() for path in (site.work / "out.journal").glob("*.log")]
    return len({line for text in logs for line in re.findall(r"^[0-9a-f]{8} (done \d+)$", text, re.M)})


def resumed(site: Site, ranks: int) -> None:
    """Resume to what NumPy makes of each image; what was finished is not done again."""
    done = finished(site)
    assert site.finish(words(ranks, "--resume"))["stream"]["resumed"] == done
    assert len(site.calls) == len(set(site.calls)) == IMAGES - done
    assert set(content(site.work / "out")) == set(content(site.work / "photos"))
    for path in (site.work / "photos").iterdir():
        array = np.load(path)
        padded = np.pad(array, 1, mode="edge")
        expected = 2 * array - padded[:-2, 1:-1] - padded[1:-1, 2:]
        assert np.array_equal(np.load(site.work / "out" / path.name), expected)


@pytest.mark.parametrize(
    ("where", "victim", "ranks", "call", "later"),
    [
        nightly("half a file", 0, 1, 3, 2),
        ("half a file", 1, 3, 2, 1),
        pytest.param("before its name", 1, 2, 3, 3, marks=pytest.mark.mpi_library),
        nightly("after its name", 0, 2, 3, 1),
        nightly("before its line", 1, 2, 2, 2),
        ("after its line", 1, 3, 2, 2),
        nightly("kernel", 1, 2, 3, 4),
        ("rename", 0, 2, 1, 1),
    ],
)
@needs_mpi
def test_a_killed_rank_loses_no_image_that_was_finished(
    site: Site, where: str, victim: int, ranks: int, call: int, later: int
) -> None:
    before = content(site.work)
    status, lines = site.run(words(ranks, "--static"), STAGE=f"{where},{victim},{call}")
    assert status != 0
    assert ranks == 1 or "killed by signal 9 (SIGKILL)" in lines[0]
    after = content(site.work)
    assert {name: after[name] for name in before} == before
    assert not (site.work / "out").exists()
    if where == "rename":
        assert finished(site) == IMAGES
    sentence = site.refused(words(later))
    assert "an earlier run of out is unfinished. Try: the same command with --resume" in sentence
    resumed(site, later)


@needs_mpi
def test_a_run_that_is_killed_again_and_again_ends(site: Site) -> None:
    done = 0
    for ranks, stage in ((2, "after its line,1,2"), (3, "half a file,0,1"), (1, "after its line,0,1")):
        more = ["--resume"] if done else []
        assert site.run(words(ranks, "--static", *more), STAGE=stage)[0] != 0
        assert finished(site) > done or stage.startswith("half")
        done = finished(site)
    resumed(site, 2)


def test_killed_after_the_rename_the_output_is_there(site: Site) -> None:
    assert site.run(words(1), STAGE="renamed,0,2")[0] != 0
    assert len(content(site.work / "out")) == IMAGES
    sentence = site.refused(words(1, "--resume"))
    assert "the output folder out is not empty" in sentence


@needs_mpi
def test_a_broken_image_is_told_once_and_mended(site: Site) -> None:
    path = site.work / "photos" / "09.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    status, lines = site.run(words(3))
    assert status == 1
    sentence, kept = lines
    assert "photos/09.npy is truncated" in sentence
    assert "Try: repair it or remove it from the folder, then run the same command with --resume" in sentence
    assert kept == KEPT
    path.write_bytes(whole)
    resumed(site, 2)


def test_begun_anew_as_the_sentence_says(site: Site) -> None:
    assert site.run(words(1), STAGE="before its line,0,4")[0] != 0
    anew = site.refused(words(1)).rpartition("to start from the beginning: ")[2]
    subprocess.run(shlex.split(anew), cwd=site.work, check=True)
    assert site.finish(words(1))["stream"]["resumed"] == 0
    assert len(content(site.work / "out")) == IMAGES

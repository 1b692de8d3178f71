"""The commands that the documentation shows are run as they stand: those of the README, at night all."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from scipy import ndimage

import meshrun
from jobs.validate.simulation.spec import FORMS, FleetSpec, parse_fleet
from jobs.validate.verdict import EXIT
from runner.comm.threads import run_ranks
from runner.errors import UserError
from runner.plan.step_options import StepOptions
from runner.plan.stream_options import StreamOptions
from runner.run.execute import Options, run
from runner.world.world import open_world

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_define_what_they_show(page: Path) -> None:
    for number, code in enumerate(blocks(page, "python")):
        compiled = compile(code, f"{page.name}[{number}]", "exec")
        exec(compiled, {"meshrun": meshrun})


def jobs_of_the_page() -> dict[str, Any]:
    names: dict[str, Any] = {"meshrun": meshrun}
    for code in blocks(ROOT / "docs" / "jobs.md", "python"):
        exec(code, names)
    return names


def test_the_jobs_pages_example_is_for_arrays_of_two_axes() -> None:
    smear = jobs_of_the_page()["smear"]
    np.testing.assert_allclose(smear(np.ones((5, 4))), np.ones((5, 4)))
    with pytest.raises(UserError, match="smear is for arrays of two axes"):
        smear(np.ones((5, 4, 3)))


def test_the_jobs_pages_reduction_may_have_an_option() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text()
    start = page.index("@meshrun.reduce_blocks")
    code = page[start : page.index("```", start)].replace("(block)", "(block, *, scale: float = 1.0)")
    names: dict[str, Any] = {"meshrun": meshrun}
    exec(code, names)
    assert names["totals"](np.array([1.0, 2.0]), scale=3.0) == {"sum": 3.0, "max": 2.0}


def test_the_jobs_pages_examples_compute_what_they_say() -> None:
    shown = jobs_of_the_page()
    array = np.random.default_rng(3).random((9, 7))
    side, beside = 0.25 / 2, 0.75 / 3
    kernel = [[0, 0, side, 0, 0], [beside, beside, beside, 0, 0], [0, 0, side, 0, 0]]
    expected = ndimage.correlate(array, kernel, mode="mirror")
    np.testing.assert_allclose(shown["smear"](array, weight=0.25), expected, rtol=1e-12)
    speed, depth = np.random.default_rng(4).random((2, 9, 7))
    height, faster = shown["swell"](array, speed, depth, step=0.2)
    np.testing.assert_allclose(faster, speed + 0.2 * depth * ndimage.laplace(array), rtol=1e-12)
    np.testing.assert_allclose(height, array + 0.2 * faster, rtol=1e-12)
    cells = np.arange(24.0).reshape(4, 6)
    np.testing.assert_array_equal(shown["coarsen"](cells), [[3.5, 5.5, 7.5], [15.5, 17.5, 19.5]])
    assert shown["totals"](array) == {"sum": pytest.approx(array.sum()), "max": array.max()}
    array = np.random.default_rng(4).integers(0, 99, (1031, 2053))  # several tiles
    peak = int(array.argmax())
    assert shown["peak"](array) == {"max": 98, "index": [*np.unravel_index(peak, array.shape)], "flat": peak}
    assert shown["spread"](array, scale=3.0) == {"spread": 3 * (array.max() - array.min())}


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_jobs_pages_power_spectrum_is_numpys(tmp_path: Path, ranks: int) -> None:
    array = np.random.default_rng(5).random((7, 10))
    np.save(tmp_path / "in.npy", array)
    power, places = jobs_of_the_page()["power"], (tmp_path / "in.npy", tmp_path / "out.npy")
    done = run_ranks(ranks, lambda comm: run(power, *places, world=open_world("cpu", control=comm)))
    expected = abs(np.fft.fft2(array)) ** 2
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-12)
    assert done[0]["result"]["total"] == pytest.approx(expected.sum())


def run_commands(
    page: Path, folder: Path, ends: Mapping[str, Collection[int]] = MappingProxyType({})
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run what a page's console blocks show, in a folder. Each command has to end with status 0, or with one
    of what `ends` has for it.
    """
    if shutil.which("mpiexec") is None and not Path(sys.executable).with_name("mpiexec").exists():
        pytest.skip("no mpiexec: the commands start several ranks")
    joined = [re.sub(r" *\\\n +", " ", block) for block in blocks(page, "console")]
    lines = [line for block in joined for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    ended = {}
    for command in commands:
        words = shlex.split(command)
        assert words[0] in ("meshrun", "python3")
        words[0] = sys.executable if words[0] == "python3" else str(Path(sys.executable).with_name("meshrun"))
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode in ends.get(command, (0,)), f"{command}\n{done.stderr}"
        ended[command] = done
    return ended


@pytest.mark.nightly
def test_the_commands_of_the_page_on_transforms_succeed(tmp_path: Path) -> None:
    array = np.random.default_rng(4).standard_normal((12, 10, 8))
    np.save(tmp_path / "in.npy", array)
    assert len(run_commands(ROOT / "docs" / "transforms.md", tmp_path)) == 4
    np.testing.assert_allclose(np.load(tmp_path / "back.npy"), array, atol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "turned.npy"), array.transpose(2, 0, 1))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_transforms_pages_low_pass_keeps_low_frequencies(tmp_path: Path, ranks: int) -> None:
    names: dict[str, Any] = {"meshrun": meshrun}
    for code in blocks(ROOT / "docs" / "transforms.md", "python"):
        exec(code, names)
    rows, columns = np.mgrid[:20, :30] * 2 * np.pi
    low, high = np.cos(rows / 20) + np.sin(columns / 15), np.cos(rows / 4)
    np.save(tmp_path / "in.npy", low + high)
    places = (tmp_path / "in.npy", tmp_path / "out.npy")
    run_ranks(ranks, lambda comm: run(names["low_pass"], *places, world=open_world("cpu", control=comm)))
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), low, atol=1e-12)


@pytest.mark.nightly
def test_the_bench_pages_commands_succeed(tmp_path: Path) -> None:
    assert len(run_commands(ROOT / "docs" / "bench.md", tmp_path)) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["copy.md", "lessons.md"])
def test_the_commands_of_the_pages_on_memory_succeed(tmp_path: Path, page: str) -> None:
    assert len(run_commands(ROOT / "docs" / page, tmp_path)) == 3


@pytest.mark.nightly
def test_the_validate_pages_commands_succeed(tmp_path: Path) -> None:
    """Who else uses these processors may make one of them slow, which is a verdict too: "unknown" is none."""
    real = "meshrun -n 2 validate --device cpu --rungs gpu --quick"
    verdicts = {status: word for word, status in EXIT.items() if word != "unknown"}
    ended = run_commands(ROOT / "docs" / "validate.md", tmp_path, {real: verdicts})
    assert len(ended) == 2
    done = ended[real]
    assert done.stdout.startswith(f"{verdicts[done.returncode].upper()}: "), done.stdout
    assert re.search(r"^gpu +(ok|broken) +memory +\d", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "page.html").exists()
    assert json.loads((tmp_path / "verdict.json").read_text())["status"] == "ok", "a healthy simulated fleet"


@pytest.mark.nightly
def test_the_page_of_simulated_fleets_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    page = ROOT / "docs" / "validate-simulate.md"
    assert len(run_commands(page, tmp_path)) == 2
    path.write_text(blocks(page, "json")[0])
    assert len(parse_fleet(str(path)).faults) == 2
    text = page.read_text()
    keys = [f"`{field.name}`" for field in fields(FleetSpec) if field.name != "faults"]
    kinds = [f"`{kind}:" for kind in FORMS]
    assert [word for word in [*keys, *kinds] if word not in text] == []


@pytest.mark.nightly
def test_the_launch_pages_commands_succeed(tmp_path: Path) -> None:
    assert len(run_commands(ROOT / "docs" / "launch.md", tmp_path)) > 2


@pytest.mark.nightly
def test_the_streaming_pages_commands_succeed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    assert len(run_commands(ROOT / "docs" / "streaming.md", tmp_path)) > 2
    assert (tmp_path / "run.html").exists()


@pytest.mark.nightly
def test_the_formats_pages_commands_succeed(tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="needs zarr, which needs Python 3.11")
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    (tmp_path / "photos").mkdir()
    Image.open(ROOT / "examples" / "rocket.jpg").save(tmp_path / "photos" / "rocket.png")
    (example,) = blocks(ROOT / "docs" / "formats.md", "python")
    (tmp_path / "gradient.py").write_text(example)
    assert len(run_commands(ROOT / "docs" / "formats.md", tmp_path)) > 5
    assert (tmp_path / "gray" / "rocket.png").exists()


@pytest.mark.nightly
def test_the_steps_pages_commands_make_its_pictures(tmp_path: Path) -> None:
    """Floats may round otherwise on another processor, which changes the colour of some cells by one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    assert len(run_commands(ROOT / "docs" / "steps.md", tmp_path)) > 8
    assert (tmp_path / "calm.npy").exists()
    assert not (tmp_path / "u.npy.checkpoint").exists()
    for shown in sorted((ROOT / "docs" / "images").iterdir()):
        assert shown.stat().st_size < 150_000
        made = tmp_path / shown.name
        if shown.name.startswith("gray_scott"):
            made = tmp_path / "gray_scott" / shown.name.replace("gray_scott", "frame")
        ours, theirs = frames_of(shown), frames_of(made)
        assert ours.shape == theirs.shape
        assert abs(ours - theirs).mean() < 1, shown.name


def frames_of(path: Path) -> Any:
    with Image.open(path) as picture:
        return np.stack([np.asarray(one.convert("RGB"), int) for one in ImageSequence.Iterator(picture)])


@pytest.mark.mpi_library
def test_the_readmes_commands_do_what_they_say(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "edges.py").write_text(example)
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    commands = run_commands(ROOT / "README.md", tmp_path)
    assert len(commands) > 3
    assert {path.name for path in tmp_path.iterdir()} >= {"edges.npy", "blurred.png", "log.npy"}


def documented(heading: str) -> set[str]:
    """The keys in the first column of the table that follows `heading` in the record's page."""
    text = (ROOT / "docs" / "record.md").read_text().split(heading, 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows is not None
    cells = [row.split("|")[1] for row in rows[0].splitlines()[2:]]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def test_every_key_of_the_record_is_documented_and_no_other(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((8, 5), np.float32))
    job = meshrun.map_blocks(lambda block: 2 * block)
    options = Options(device="cpu", verify="sample")
    record = run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, options)
    assert set(record) == documented("# The record of a run")
    for phase in record["phases"].values():
        assert set(phase) == documented("A phase:")
    required = Options(device="cpu", fuse="require")
    record = run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, required)
    assert set(record["fused"]) == documented("`fused`:")
    streamed = Options(device="cpu", stream=StreamOptions(chunk_bytes=100))
    record = run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, streamed)
    assert set(record["stream"]) == documented("`stream`:")
    stepped = Options(device="cpu", steps=StepOptions(2))
    record = run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, stepped)
    assert set(record["steps"]) == documented("`steps`:")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"

"""The commands that the documentation shows are run as they stand: those of the README, at night all."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
from PIL import Image, ImageSequence
from scipy import ndimage
from scripts import load

import meshrun
from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.linalg.matmul.job import matmul
from meshrun.jobs.measure.exit_codes import NeedsGpu, Stuck, WrongResults
from meshrun.jobs.transforms.fft_job import fft
from meshrun.jobs.transforms.transpose_job import transpose_job
from meshrun.jobs.validate.simulation.spec import FORMS, FleetSpec, parse_fleet
from meshrun.jobs.validate.verdict import EXIT
from meshrun.launch.cli.main import command as root_command
from meshrun.launch.cli.main import main
from meshrun.launch.cli.plugins import check_words
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler.cpp.host import steps_in_cache
from meshrun.runner.compiler.cuda.steps.layout import MOST_STEPS
from meshrun.runner.errors import Exit, RunError, UserError
from meshrun.runner.forecast.machine import nominal
from meshrun.runner.forecast.place import Place, links_of
from meshrun.runner.options.run_options import run_rows
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report import summary
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
LESSONS = sorted(path for room in ("tutorials", "coming-from") for path in (DOCS / room).glob("*.md"))
SIDES = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], "float32")[..., None]
VERDICTS = ("index.md", "validate.md", "tutorials/sick-cluster.md")  # pages that show the one of FAULT
FAULT = "meshrun validate --simulate hosts=16,gpus=8,fault=nic:h3:1:0.6"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def save_programs(page: Path, folder: Path) -> list[str]:
    """Save the page's Python blocks that begin with `# NAME.py` under that name; returns the names."""
    named = [(re.match(r"# (\w+\.py)\n", code), code) for code in blocks(page, "python")]
    for name, code in named:
        if name:
            (folder / name[1]).write_text(code)
    return [name[1] for name, _ in named if name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_examples_define_what_they_show(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # programs may write files
    for number, code in enumerate(blocks(page, "python")):
        if "import meshrun" not in code and code.startswith("# "):
            continue  # a program, which the page's commands run
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


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_the_jobs_pages_iteration_has_numpys_bits(tmp_path: Path, ranks: int) -> None:
    """Also on ranks without cells. The number of iterations depends on the bits of a reduction."""
    charge = np.random.default_rng(5).random((6, 9)).astype(np.float32)
    np.save(tmp_path / "in.npy", charge)
    jacobi, source = jobs_of_the_page()["jacobi"], tmp_path / "in.npy"
    outs = [tmp_path / "potential.npy", tmp_path / "residual.npy"]
    done = run_ranks(ranks, lambda comm: run(jacobi, source, outs, world=open_world("cpu", control=comm)))
    result = done[0]["result"]
    potential = np.zeros(charge.shape)
    for _ in range(result["iterations"] + 1):
        b, before = np.pad(potential, 1), potential
        around = b[:-2, 1:-1] + b[2:, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:]
        residual = charge + around - 4 * before
        potential = before + residual / 4
    np.testing.assert_array_equal(np.load(outs[0]), before)
    np.testing.assert_array_equal(np.load(outs[1]), residual)
    assert result["residual"] == pytest.approx(np.linalg.norm(residual), rel=1e-12)
    assert result["residual"] <= 1e-3 * np.linalg.norm(charge)
    assert result["iterations"] == 87


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
    assert len(run_commands(ROOT / "docs" / "transforms.md", tmp_path)) == 6
    np.testing.assert_allclose(np.load(tmp_path / "back.npy"), array, atol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "turned.npy"), array.transpose(2, 0, 1))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_tools_pages_jobs_compute_what_they_say(tmp_path: Path, ranks: int) -> None:
    names: dict[str, Any] = {"meshrun": meshrun}
    for code in blocks(ROOT / "docs" / "tools.md", "python"):
        exec(code, names)
    u, x = np.random.default_rng(1).integers(0, 20, (9, 7)), np.array([0.5, 7.25, 3, 3])
    charge = np.array([1, -2, 0.5, 0.25])
    for name, array in (("u", u), ("x", x), ("charge", charge), ("grid", np.zeros(8))):
        np.save(tmp_path / f"{name}.npy", array)

    def done(comm: Any) -> Any:
        world = open_world("cpu", control=comm)
        first = run(names["ranked"], tmp_path / "u.npy", tmp_path / "ordered.npy", world=world)
        inputs = [tmp_path / f"{name}.npy" for name in ("x", "charge", "grid")]
        return first, run(names["density"], inputs, tmp_path / "rho.npy", world=world)

    ranked, density = run_ranks(ranks, done)[0]
    counts = np.unique(u, return_counts=True)[1]
    assert ranked["result"] == {
        "median": np.median(u),
        "quartiles": np.percentile(u, [25, 75]).tolist(),
        "values": len(counts),
        "most frequent": counts.max(),
    }
    np.testing.assert_array_equal(np.load(tmp_path / "ordered.npy"), np.sort(u, axis=None))
    np.testing.assert_array_equal(np.load(tmp_path / "rho.npy"), [0, 0.5, 0, 0.75, 0, 0, 0, -1.5])
    assert density["result"] == {"positive": 3}


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


def modelled(job: Any, arrays: list[Any], ranks: int, **parameters: Any) -> tuple[float, float, float]:
    """Milliseconds of products, of messages and of all without files, on H200s, 8 a host."""
    machine, hosts = nominal("h200"), -(-ranks // 8)
    links = links_of(machine, min(ranks, 8), None, None)
    place = Place(machine, links, ranks, hosts, machine.device_memory)
    found = job.forecast(place, arrays, **job.complete(parameters))
    parts = [
        sum(stage.seconds for stage in found.stages if stage.name == name)
        for name in ("multiply", "exchange")
    ]
    return 1e3 * parts[0], 1e3 * parts[1], 1e3 * found.in_memory


def rows_of(page: str, head: str) -> list[list[float]]:
    """The numbers of a table of a page."""
    table = (DOCS / page).read_text().partition(head)[2].partition("\n\n")[0]
    rows = [row.replace(" ms", "").strip("| ").split(" | ") for row in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "64", "512"]
    return [[float(cell) for cell in row] for row in rows]


def test_the_tables_of_how_time_grows_are_the_models() -> None:
    for ranks, *times in rows_of("transforms.md", "| ranks | fft 1024^3"):
        found = [
            round(one, 2)
            for job, shape, dtype in ((fft, (1024,) * 3, "c8"), (transpose_job, (32768,) * 2, "f4"))
            for one in modelled(job, [(shape, dtype)], int(ranks))[1:]
        ]
        assert times == found, ranks
    for ranks, *times in rows_of("matmul.md", "| ranks | products |"):
        arrays = [((32768, 32768), "f4")] * 2
        found = [round(one, 2) for one in modelled(matmul, arrays, int(ranks), precision="bfloat16")]
        assert times == found, ranks


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
    ended = run_commands(ROOT / "docs" / "validate.md", tmp_path, {real: verdicts, FAULT: [EXIT["critical"]]})
    assert len(ended) == 3
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


def test_the_program_of_the_page_on_arrays_solves_its_equation(tmp_path: Path) -> None:
    page = ROOT / "docs" / "arrays.md"
    save_programs(page, tmp_path)
    done = run_commands(page, tmp_path)
    for command, process in done.items():
        assert f"$ {command}\n{process.stdout.strip()}" in page.read_text()
    b = np.zeros((96, 64))
    b[30:40, 20:30] = 1
    x = np.pad(np.load(tmp_path / "x.npy"), 1)
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    np.testing.assert_allclose(4 * x[1:-1, 1:-1] - around, b, atol=1e-5)


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
    text = (ROOT / "docs" / "steps.md").read_text()
    pictures = {ROOT / "docs" / name for name in re.findall(r"images/[\w.-]+", text)}
    assert len(pictures) > 6
    for shown in sorted(pictures):
        assert shown.stat().st_size < 150_000
        made = tmp_path / shown.name
        if shown.name.startswith("gray_scott"):
            made = tmp_path / "gray_scott" / shown.name.replace("gray_scott", "frame")
        ours, theirs = frames_of(shown), frames_of(made)
        assert ours.shape == theirs.shape
        assert abs(ours - theirs).mean() < 1, shown.name


@pytest.mark.nightly
def test_the_solvers_pages_commands_make_its_pictures(tmp_path: Path) -> None:
    """Floats may round otherwise on another processor, which changes the colour of some cells by one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    assert len(run_commands(ROOT / "docs" / "solvers.md", tmp_path)) == 20
    for shown in sorted((ROOT / "docs" / "images" / "solvers").iterdir()):
        ours, theirs = frames_of(shown), frames_of(tmp_path / shown.name)
        assert ours.shape == theirs.shape
        assert abs(ours - theirs).mean() < 1, shown.name


def test_the_solvers_page_shows_every_solver_and_the_pictures_that_are_drawn() -> None:
    text = (ROOT / "docs" / "solvers.md").read_text()
    solvers = ROOT / "examples" / "solvers"
    programs = {path.name for path in solvers.glob("*.py")}
    assert set(re.findall(r"examples/solvers/(\w+\.py)", text)) == programs
    drawn = {f"{name}.png" for name in runpy.run_path(str(solvers / "pictures.py"))["PICTURES"]}
    pictures = list((ROOT / "docs" / "images" / "solvers").iterdir())
    assert {path.name for path in pictures} == drawn == set(re.findall(r"images/solvers/([\w.]+)", text))
    assert all(path.stat().st_size < 60_000 for path in pictures)


def frames_of(path: Path) -> Any:
    with Image.open(path) as picture:
        return np.stack([np.asarray(one.convert("RGB"), int) for one in ImageSequence.Iterator(picture)])


@pytest.mark.mpi_library
def test_the_readmes_commands_do_what_they_say(tmp_path: Path) -> None:
    assert save_programs(ROOT / "README.md", tmp_path) == ["edges.py", "cooling.py"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = run_commands(ROOT / "README.md", tmp_path, {FAULT: [EXIT["critical"]]})
    assert len(commands) == 4
    with Image.open(ROOT / "examples" / "rocket.jpg") as photo:
        picture = np.asarray(photo, "float32")
    inner, beside = (slice(1, -1), slice(1, -1)), ((1, 1), (1, 1), (0, 0))
    steep = np.hypot(*(2 * one[inner] for one in np.gradient(picture, axis=(0, 1))))
    edges = np.load(tmp_path / "edges.npy")
    np.testing.assert_allclose(edges, np.pad(0.5 * steep, beside), rtol=1e-5)
    plate = edges
    for _ in range(200):
        changed = plate + 0.2 * (ndimage.correlate(plate, SIDES) - 4 * plate)
        plate = np.pad(changed[inner], beside, mode="edge")
    np.testing.assert_allclose(np.load(tmp_path / "cooled.npy"), plate, rtol=1e-3)
    assert len(frames_of(tmp_path / "cooling.webp")) == 11
    verdict = commands[FAULT].stdout.splitlines()[0]
    for page in (ROOT / "README.md", *(DOCS / name for name in VERDICTS)):
        assert re.findall(r"^CRITICAL: .*", page.read_text(), re.MULTILINE) == [verdict], page.name


@pytest.mark.nightly
@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_commands_of_tutorials_succeed(tmp_path: Path, page: Path) -> None:
    """Each page in a folder of its own, with the programs that it shows and a photograph."""
    programs = save_programs(page, tmp_path)
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    critical = f"{FAULT} --html verdict.html -J verdict.json"
    commands = run_commands(page, tmp_path, {critical: [EXIT["critical"]]})
    assert commands or page.name == "index.md"
    used = " ".join(commands)
    assert [name for name in programs if name not in used] == []
    if page.name == "mpi4py.md":
        by_hand, ours = np.load(tmp_path / "by_hand.npy"), np.load(tmp_path / "cooled.npy")
        np.testing.assert_allclose(ours, by_hand, rtol=1e-5)
    if page.name == "numpy.md":
        assert np.load(tmp_path / "by_hand.npy").tobytes() == np.load(tmp_path / "plate.npy").tobytes()


def test_what_pages_say_of_peers_was_tried() -> None:
    """By benchmarks/peers/pages.py, which needs the peers; its record has every claim, and their versions."""
    record = json.loads((ROOT / "benchmarks" / "results" / "coming_from.json").read_text())
    assert [one["claim"] for one in record["claims"] if not one["holds"]] == []
    assert {one["page"] for one in record["claims"]} == {"dask.md", "jax.md"}
    for name, words in (("dask", "Dask"), ("jax", "JAX")):
        page = " ".join((DOCS / "coming-from" / f"{name}.md").read_text().split())
        assert f"{words} {record['versions'][name]}" in page
    table = (DOCS / "coming-from" / "dask.md").read_text()
    for claim in (one["claim"] for one in record["claims"] if one["claim"].startswith("boundary ")):
        theirs, ours = re.findall(r"boundary (\w+) is (\w+)", claim)[0]
        assert f"`{ours}`" in table
        assert theirs == "3" or f"`{theirs}`" in table


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
            if not target.startswith(("http", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_python_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text() for path in sorted((DOCS / "reference" / "python").glob("*.md")))
    listed = re.findall(r"^::: meshrun\.(\w+)$", pages, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", (DOCS / "reference" / "python.md").read_text())) == sorted(listed)
    assert sorted(listed) == sorted(meshrun.__all__)
    assert [name for name in listed if len(docstring_of(name)) < 20] == []


def docstring_of(name: str) -> str:
    """The docstring of a public name, from its source: some need a GPU's libraries to be imported."""
    path = ROOT / (meshrun._MODULE_OF[name].replace(".", "/") + ".py")
    named = (ast.FunctionDef, ast.ClassDef)
    found = [one for one in ast.parse(path.read_text()).body if isinstance(one, named) and one.name == name]
    return ast.get_docstring(found[-1]) or ""


@pytest.fixture
def site() -> Any:
    return load(DOCS / "site.py")


def test_the_gallery_shows_the_pictures_that_its_program_makes() -> None:
    pictures = load(DOCS / "pictures.py")
    made = {f"{name}-{scheme}.png" for name in pictures.PAGES for scheme in pictures.SCHEMES}
    made |= {f"{name}.png" for name in pictures.FILMS}
    shown = re.findall(r"images/gallery/([\w.-]+)", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted(made)
    assert {path.name for path in pictures.TARGET.iterdir()} == made
    written = " ".join(pictures.commands())
    for page in pictures.PAGES.values():
        assert page.file in written or page.file in pictures.RECORDED
    assert all(path.stat().st_size < pictures.LARGEST for path in pictures.TARGET.iterdir())


def test_the_plot_of_weak_scaling_has_the_efficiencies_of_the_records(tmp_path: Path) -> None:
    load(DOCS / "pictures.py").weak_scaling(tmp_path / "scaling.html")
    shown = re.findall(r"([\d.]+ %)", (tmp_path / "scaling.html").read_text())
    table = (ROOT / "benchmarks" / "README.md").read_text().partition("efficiency, beside |")[2]
    written = re.findall(r"([\d.]+ %) \|$", table.partition("\n\n")[0], re.MULTILINE)
    assert shown == written[1:]  # of 2 and 4 GPUs; one is the reference


def test_the_plot_of_the_lesson_has_the_rates_of_its_record(tmp_path: Path) -> None:
    load(DOCS / "pictures.py").coalescing(tmp_path / "lesson.html")
    page = (tmp_path / "lesson.html").read_text()
    record = json.loads((ROOT / "benchmarks" / "results" / "lesson_coalescing.json").read_text())
    assert record["title"] in page
    for one in record["accesses"]:
        assert f">{one['useful_bytes'] / one['seconds'] / 1e9:.4g}<" in page, one
    aligned, *misaligned = (one["seconds"] for one in record["accesses"] if one["stride"] == 1)
    assert max(misaligned) < 1.02 * aligned, "as the page says"


def test_one_section_of_a_page_is_left_to_photograph() -> None:
    page = "<head></head><section><h2>A</h2>a</section><section><h2>Pairs</h2>p</section>"
    shown = load(DOCS / "pictures.py").only(page, "Pairs")
    assert '<section class="kept"><h2>Pairs</h2>' in shown
    assert '<section class="kept"><h2>A</h2>' not in shown
    assert "display: none" in shown


def test_the_site_finds_what_a_page_loads_from_elsewhere(tmp_path: Path, site: Any) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://a.example"></a><img src="a.png"><script src="b.js">'
    )
    (tmp_path / "a.css").write_text("a { background: url('a.png') }")
    assert site.loaded_from_elsewhere(tmp_path) == []
    (tmp_path / "b.html").write_text('<script src="https://a.example/b.js"></script>')
    (tmp_path / "b.css").write_text("a { background: url('//a.example/a.png') }")
    assert len(site.loaded_from_elsewhere(tmp_path)) == 2


def test_the_site_has_a_page_for_each_command(site: Any) -> None:
    pages = {site.command_uri(ctx): site.command_page(ctx) for ctx in site.all_commands(site.root_context())}
    for command in (
        "bench all_reduce",
        "bench memory transpose",
        "launch slurm",
        "run laplacian",
        "validate",
    ):
        page = pages[f"reference/commands/{command.replace(' ', '/')}.md"]
        assert page.startswith(f"# meshrun {command}\n")
        assert "\b" not in page
        assert page.count("`-h, --help`") == (not command.startswith("run "))
    shown = site.on_page_markdown("# Commands", page_of("reference/commands.md"))
    assert "- [meshrun validate](commands/validate.md): " in shown


def test_the_options_of_a_run_are_on_one_page_by_section(site: Any) -> None:
    pages = {ctx.command_path: site.command_page(ctx) for ctx in site.all_commands(site.root_context())}
    sections = re.findall("^## (.+)$", pages["meshrun run"], re.MULTILINE)
    assert sections == ["Run", "Files", "Steps", "Streaming", "Debug", "Jobs"]
    for row in run_rows():
        flag = f"^`(-[a-z], )?--{row.name.replace('_', '-')}[ ,`]"
        assert len(re.findall(flag, pages["meshrun run"], re.MULTILINE)) == 1, row.name
    assert "--reynolds" in pages["meshrun run airflow"]
    assert "--checkpoint" not in pages["meshrun run airflow"]
    assert "--ranks" in pages["meshrun plan"]


def test_the_copy_button_of_a_session_copies_its_commands(site: Any) -> None:
    shown = "$ meshrun run a.py \\\n    in.npy out.npy\nwrote out.npy\n$ ls\n"
    copied = "meshrun run a.py \\\n    in.npy out.npy\nls"
    assert site.session_commands(shown, site.PROMPTS["console"]) == copied
    shown = ">>> with a:\n...     b = 1\n>>> b\n1\n"
    assert site.session_commands(shown, site.PROMPTS["pycon"]) == "with a:\n    b = 1\nb"
    html = '<div class="language-console highlight"><code><span>$ </span>echo "&lt;"\n&lt;</code></div>'
    assert 'data-copy="echo &quot;&lt;&quot;"' in site.on_page_content(html)
    html = html.replace("console", "python")
    assert site.on_page_content(html) == html


def test_a_page_as_markdown_has_docstrings_and_no_comments(site: Any) -> None:
    site.on_page_markdown("<!-- made by x -->\na <!--{1:d}-->1<!--/--> b", page_of("steps.md"))
    assert site.SOURCES["steps.md"] == "a 1 b"
    shown = site.with_docstrings("# A\n\n::: meshrun.sort\n::: meshrun.World\n")
    assert "meshrun.sort(a" in shown
    assert "Return a sorted copy of an array." in shown
    assert ":::" not in shown


def test_the_site_shows_files_outside_of_docs(site: Any) -> None:
    assert site.outside("steps.md", "../examples/heat.py") == "examples/heat.py"
    assert site.outside("tutorials/slurm.md", "../../slurm") == "slurm"
    assert site.outside("tutorials/slurm.md", "../jobs.md") is None
    shown = site.on_page_markdown("[a](../examples/heat.py) [b](jobs.md#x)", page_of("steps.md"))
    assert shown == "[a](source/examples/heat.py.page.md) [b](jobs.md#x)"
    shown = site.on_page_markdown("[b](../docs/jobs.md#x)", page_of("source/benchmarks/README.md"))
    assert shown == "[b](../../jobs.md#x)"


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_program() -> None:
    table = (
        (DOCS / "troubleshooting.md").read_text().partition("| message contains |")[2].partition("\n\n")[0]
    )
    messages = [text for row in table.splitlines()[2:] for text in re.findall("`([^`]+)`", row.split("|")[1])]
    sources = "".join(
        path.read_text() for room in ("runner", "launch") for path in (ROOT / room).rglob("*.py")
    )
    assert len(messages) > 10
    assert [text for text in messages if text not in sources] == []


@pytest.mark.parametrize("page", ["troubleshooting.md", "performance.md"])
def test_the_commands_of_a_page_that_helps_are_accepted(page: str) -> None:
    """They run at night."""
    lines = [line for block in blocks(DOCS / page, "console") for line in block.splitlines()]
    assert lines
    for line in lines:
        words = shlex.split(line.removeprefix("$ meshrun "))
        words = words[2:] if words[0] == "-n" else words
        if words[0] == "plan":
            assert main(words) == 0
        else:
            check_words(root_command, words)


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["troubleshooting.md", "performance.md"])
def test_the_commands_of_a_page_that_helps_succeed(page: str, tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 50, 3), np.uint8)).save(
        tmp_path / "photo.jpg"
    )
    run_commands(DOCS / page, tmp_path, {"meshrun doctor": (0, 1, 2)})


def page_of(uri: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri))


SCHEMAS = DOCS / "reference" / "schemas"


def schema(kind: str) -> Any:
    found = json.loads((SCHEMAS / f"{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def faults(kind: str, record: Any) -> list[str]:
    """What a record has that its schema does not allow or does not name."""
    wanted = schema(kind)
    checked = jsonschema.Draft202012Validator(wanted).iter_errors(json.loads(json.dumps(record)))
    return [one.message for one in checked] + sorted({*record} - {*wanted["properties"]})


RUNS = {
    "once": Options(device="cpu", verify="full"),
    "in chunks": Options(device="cpu", stream=StreamOptions(chunk_bytes=100)),
    "in steps": Options(device="cpu", steps=StepOptions(3), verify="sample"),
    "fused": Options(device="cpu", fuse="require"),
    "checked": Options(device="cpu", checksum="full"),
}


@pytest.mark.parametrize("how", RUNS)
def test_records_of_runs_follow_their_schema(tmp_path: Path, how: str) -> None:
    np.save(tmp_path / "in.npy", np.ones((8, 5), np.float32))
    job = meshrun.map_blocks(lambda block: 2 * block)
    path = tmp_path / "record.json"
    record = run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, replace(RUNS[how], json=str(path)))
    written = json.loads(path.read_text())
    assert faults("run", written) == []
    assert {*written} == {*record}
    for part in ("phases", "ranks", "devices"):
        assert faults("run", {key: value for key, value in written.items() if key != part}), part
    assert faults("run", {**written, "seconds": "1"})
    assert faults("run", {**written, "secnods": 1.0}) == ["secnods"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("plan", "plan laplacian --shape 400x400 --input-dtype uint8 --ranks 2 --json a.json"),
        (
            "plan",
            "plan laplacian --shape 40000x4096 --input-dtype float32 --ranks 8 --gpu h200 --json a.json",
        ),
        ("plan", "plan fft --shape 64x64x64 --input-dtype complex64 --ranks 4 --gpu h200 --json a.json"),
        ("plan", "plan matmul --shape 30x20,20x25 --input-dtype float64 --ranks 3 --gpu cpu --json a.json"),
        ("plan", "plan transpose --shape 300x200 --input-dtype uint8 --ranks 64 --json a.json"),
        ("plan", "plan airflow cylinder --size 256x128 --ranks 2 --gpu cpu --json a.json"),
        ("doctor", "doctor --device cpu --json a.json"),
        ("validate", "validate --simulate hosts=2,gpus=4 --rungs gpu,pairs -J a.json"),
        ("validate", "validate --simulate hosts=4,gpus=8,fault=nic:h3:1:0.6 -J a.json"),
        ("validate", "validate --simulate gpus=4/3/4,fault=gpu:h0:1:0.6 --quick -J a.json"),
        ("validate", "validate --simulate hosts=2,gpus=4,fault=gpu:h1:2:0.6 --keep-going -J a.json"),
    ],
)
def test_other_records_follow_their_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESHRUN_NETWORK", "ib0")  # a setting that doctor shows
    assert main(words.split()) == (EXIT["critical"] if "fault" in words else 0)
    record = json.loads((tmp_path / "a.json").read_text())
    assert faults(kind, record) == []
    assert faults(kind, {**record, "kind": "other"})
    for name in {*record} & {"memory", "stages", "facts", "steps"}:
        assert faults(kind, {key: value for key, value in record.items() if key != name}), name


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--simulate hosts=2,gpus=2 --rungs gpu -J -", 0),
        ("--simulate hosts=2,gpus=2,fault=gpu:h1:1:0.6 --rungs gpu -J -", EXIT["critical"]),
        ("--simulate hosts=2,gpus=2 --rungs gpu -J - --html /dev/full", EXIT["unknown"]),  # written once
        ("--simulate hosts=nobody -J -", EXIT["unknown"]),
        ("--simulate hosts=2 --nagios -J -", EXIT["unknown"]),
        ("--simulate hosts=2 --html - -J -", EXIT["unknown"]),
    ],
)
def test_a_verdict_on_standard_output_is_its_record_alone(
    words: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *words.split()]) == status
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert faults("validate", record) == []
    assert EXIT[record["status"]] == status
    assert record["line"] in shown.err or "--nagios" in words


def test_every_schema_is_on_its_page() -> None:
    page = (DOCS / "reference" / "schemas.md").read_text()
    assert {path.name for path in SCHEMAS.iterdir()} == {*re.findall(r"schemas/(\w+\.json)", page)}


def test_the_table_of_exit_statuses_is_that_of_the_code() -> None:
    lines = (DOCS / "reference" / "exit-statuses.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    heads = table[0]
    rows = {cells[0]: dict(zip(heads, cells, strict=True)) for cells in table}
    validate, bench, run_row = rows["`validate`"], rows["`bench`"], rows["`run`"]
    for word, status in EXIT.items():
        assert validate[str(status)].startswith(word)
    assert "usage error" in bench[str(Exit.BENCH_BAD_REQUEST)]
    assert "no progress" in bench[str(Stuck.exit_code)]
    assert "wrong data" in bench[str(WrongResults.exit_code)]
    assert "needs a GPU" in bench[str(NeedsGpu.exit_code)]
    assert "usage error" in run_row[str(UserError.exit_code)]
    assert "failed" in run_row[str(RunError.exit_code)]


@pytest.mark.nightly
def test_the_gallerys_commands_succeed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "rocket.jpg", tmp_path / "photo.jpg")
    ended = run_commands(DOCS / "gallery.md", tmp_path, {f"{FAULT} --html verdict.html": [EXIT["critical"]]})
    assert len(ended) == 4
    pictures = load(DOCS / "pictures.py")
    for file, plot in pictures.RECORDED.items():
        plot(tmp_path / file)
    files = [page.file for page in pictures.PAGES.values()] + [*pictures.FILMS.values()]
    assert [name for name in files if not (tmp_path / name).exists()] == []
    text = (tmp_path / "verdict.html").read_text()
    for page in pictures.PAGES.values():
        assert not page.section or "kept" in pictures.only(text, page.section)


@pytest.mark.nightly
def test_the_commands_of_the_page_on_products_succeed(tmp_path: Path) -> None:
    a, b = np.random.default_rng(6).standard_normal((2, 40, 40))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    assert run_commands(DOCS / "matmul.md", tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), a @ b, atol=1e-12)


def test_the_record_of_the_first_flow_is_that_of_the_command_above_it() -> None:
    """`python docs/pictures.py street` makes it again."""
    record = json.loads((ROOT / "benchmarks" / "results" / "airflow_street.json").read_text())
    text = (DOCS / "airflow.md").read_text()
    (line,) = re.findall(r"^\$ meshrun run airflow cylinder street.webp (--.*)$", text, re.MULTILINE)
    words = shlex.split(line)
    options = dict(zip(words[::2], words[1::2], strict=True))
    parameters = record["parameters"]
    assert (record["input"], record["steps"]["steps"]) == ("cylinder", int(options.pop("--steps")))
    assert record["steps"]["frames"] == 1 + record["steps"]["steps"] // int(options.pop("--every"))
    defaults = airflow.complete({})
    for name, default in defaults.items():
        wanted = options.pop(f"--{name.replace('_', '-')}", default)
        assert parameters[name] == (type(parameters[name])(wanted) if wanted is not None else None), name
    assert options == {}
    for key in re.findall(r"airflow_street\.result\.(\w+)", text):
        assert key in record["result"]


@pytest.mark.parametrize("page", ["airflow.md", "plan.md"])
def test_the_plans_on_pages_are_those_of_their_commands(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # without the rates of this machine
    shown = [block.partition("\n") for block in blocks(DOCS / page, "console")]
    ((command, _, output),) = [(c, n, o) for c, n, o in shown if c.startswith("$ meshrun plan ") and o]
    assert main(shlex.split(command)[2:]) == 0
    assert capsys.readouterr().out.strip() == output.strip()


def test_the_summary_of_a_run_of_many_steps_is_that_of_its_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "fuse_run_wave.json").read_text())
    (block,) = [text for text in blocks(DOCS / "fusing.md", "console") if "examples/wave.py" in text]
    command, elision, *lines = block.splitlines()
    assert elision == "..."
    assert command.endswith(f" --steps {record['steps']['steps']}")
    assert "\n".join(lines) in summary.render(record)


def test_the_rows_of_overlap_are_those_of_their_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "overlap_all_gather_copy.json").read_text())
    text = (DOCS / "bench.md").read_text()
    (block,) = re.findall(r"overlap_all_gather_copy\.json\).*?```\n(.*?)```", text, re.DOTALL)
    shown = [line.split() for line in block.splitlines() if not line.startswith("#")]
    rows = {row["size"]: row for row in record["rows"]}
    assert len(shown) == 3
    for size, *cells in shown:
        row = rows[int(size)]
        assert cells[:2] == [row["datatype"], row["reduction"]]
        times = [
            f"{value:.2f}"
            for kind in ("alone", "together", "beside")
            for value in (1e6 * row[kind], row[f"{kind}_busbw"])
        ]
        kernel = [f"{row['kernel']:.2f}", f"{row['kernel_beside']:.2f}"]
        assert cells[2:] == [*times, *kernel, f"{100 * row['hidden']:.0f}", str(row["wrong"])]


def test_the_page_on_kernels_has_the_steps_that_one_kernel_takes() -> None:
    text = " ".join((DOCS / "fusing.md").read_text().split())
    assert f"| GPU, one or two axes | up to {MOST_STEPS} |" in text
    assert f"| CPU | {steps_in_cache(2)}; {steps_in_cache(3)} over three axes |" in text


@pytest.mark.parametrize(
    ("record", "library"),
    [("faults_open_mpi_2026112704", "Open MPI"), ("faults_mpich_2026112705", "MPICH")],
)
def test_the_tables_of_faults_are_those_of_their_records(record: str, library: str) -> None:
    random_faults = load(ROOT / "tests" / "faults" / "random_faults.py")
    runs = json.loads((ROOT / "benchmarks" / "results" / f"{record}.json").read_text())["runs"]
    begin = f"<!-- made by tests/faults/random_faults.py with {library} -->\n"
    shown = (DOCS / "faults.md").read_text().partition(begin)[2].partition(random_faults.END)[0]
    assert shown == random_faults.table(runs)


def test_the_commands_of_the_page_on_airflow_are_accepted() -> None:
    """They are parsed only: some take an hour on a processor."""
    text = "\n".join(blocks(DOCS / "airflow.md", "console"))
    commands = re.findall(r"^\$ meshrun (?:-n \d+ )?(run .*)$", text, re.MULTILINE)
    assert len(commands) > 3
    for line in commands:
        check_words(root_command, shlex.split(line))
    with pytest.raises(click.UsageError):
        check_words(root_command, [*shlex.split(commands[0]), "--reynold", "3"])


def test_the_bars_of_the_first_page_are_those_of_the_records() -> None:
    drawn = load(DOCS / "rates.py").drawing()
    assert (DOCS / "images" / "rates.svg").read_text() == drawn, "type: python docs/rates.py"

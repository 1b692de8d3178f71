"""`meshrun plan`: what it prints, what it keeps, and every mistake as one sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from meshrun.launch.cli.main import main
from meshrun.runner.forecast import calibrate
from meshrun.runner.forecast.machine import load, nominal, nominal_cpu, rates_file, save
from meshrun.runner.forecast.table import render
from meshrun.runner.storage.formats import image
from meshrun.runner.system import launcher
from meshrun.runner.world import binding

JOBS = """
import meshrun

@meshrun.map_blocks
def halved(block, *, by: float = 2.0):
    return block / by

@meshrun.map_blocks
def broken(block):
    raise ZeroDivisionError("by design")

@meshrun.map_blocks(out=lambda shape, dtype, **_: (shape, dtype))
def clash(block, *, hosts: int = 3):
    return block

@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block):
    return block.sum()

@meshrun.map_blocks(halo=(1, 1), boundary="wrap")
def spread(u, *, rate: float = 0.2):
    sides = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return u[1:-1, 1:-1] + rate * (sides - 4 * u[1:-1, 1:-1])

@meshrun.map_blocks(halo=((4, 4),) * 3, feeds=("u", "before"), outputs=2)
def wave(u, before):
    own = u[4:-4, 4:-4, 4:-4]
    return u[:-8, 4:-4, 4:-4] + u[4:-4, 8:, 4:-4] + u[4:-4, 4:-4, 8:] - before[4:-4, 4:-4, 4:-4], own

@meshrun.map_blocks(halo=(1, 1), fuse="off")
def called(u):
    return u[1:-1, 1:-1] + u[:-2, 1:-1]

@meshrun.map_blocks(halo=(1, 1), feeds=("u", None), outputs=2)
def watched(u):
    return u[1:-1, 1:-1] + u[:-2, 1:-1], u[1:-1, 1:-1].astype("f8")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.zeros((100, 80), np.float32))
    np.zeros((100, 80), np.float32).tofile("in.raw")
    Path("mine.py").write_text(JOBS)
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def test_a_file_is_planned_with_nominal_rates_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, "laplacian", "in.npy", "--ranks", "8", "--boundary", "wrap", "--dtype", "float64")
    assert "laplacian on 100x80 float32 to 100x80 float64: 8 ranks on 1 host (H200; nominal rates)" in out
    assert "limited by: " in out
    assert "rates are nominal: run meshrun plan --calibrate" in out


@pytest.mark.parametrize("name", ["in.raw", "in.npy"])
def test_a_file_is_planned_of_which_options_tell(capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = ("--input-shape", "100x80", "--input-dtype", "float32", "--ranks", "8")
    assert "laplacian on 100x80 float32 to" in planned(capsys, "laplacian", name, *words)


def test_a_picture_is_planned_by_its_header(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(path: Path) -> Any:
        raise AssertionError(f"{path} was decoded")

    monkeypatch.setattr(image, "_decode", decode)
    Image.new("RGB", (2000, 1500)).save("in.png")
    assert "laplacian on 1500x2000x3 uint8 to" in planned(capsys, "laplacian", "in.png", "--ranks", "8")
    assert main(["plan", "laplacian", "in.png", "--ranks", "8", "--host-memory", "1M"]) == 2
    assert capsys.readouterr().err == (
        "meshrun: --host-memory is less than in.png needs, which is decoded as a whole: got 1,048,576 bytes, "
        "expected at least 9,000,000\n"
    )


def test_a_shape_is_planned_on_hosts_of_eight(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("laplacian", "--shape", "131072x131072", "--input-dtype", "float32", "--ranks", "16")
    assert "16 ranks on 2 hosts (L40S; nominal rates)" in planned(capsys, *words, "--gpu", "l40s")
    assert "16 ranks on 4 hosts" in planned(capsys, *words, "--hosts", "4", "--json", "plan.json")
    record = json.loads(Path("plan.json").read_text())
    assert [one["hosts"] for one in record["by_ranks"]] == [1, 1, 1, 2, 4]
    assert record["shape"] == [131072, 131072]


def test_a_job_of_ones_own_is_called_to_see_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, "mine.py:halved", "--shape", "50x4", "--dtype", "int16", "--ranks", "2")
    assert "halved on 50x4 int16 to 50x4 float64" in out
    Path("parts").mkdir()
    Path("parts", "of_a_package.py").write_text(JOBS)
    words = ("parts.of_a_package:halved", "--shape", "50x4", "--dtype", "int16", "--ranks", "2")
    assert "halved on 50x4 int16 to 50x4 float64" in planned(capsys, *words)


def test_memory_that_is_short_streams(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("laplacian", "in.npy", "--ranks", "2", "--gpu", "cpu")
    assert "each rank: in one piece" in planned(capsys, *words)
    assert "each rank: streamed" in planned(capsys, *words, "--host-memory", "32K")


def test_measured_rates_are_used_for_their_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    save(replace(nominal("h200"), date="2025-01-31", host="n1"), rates_file())
    assert "rates measured on n1, 2025-01-31" in planned(capsys, "laplacian", "in.npy", "--ranks", "2")
    other = planned(capsys, "laplacian", "in.npy", "--ranks", "2", "--gpu", "a100")
    assert "(A100; nominal rates)" in other


def test_calibration_is_printed_and_kept(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "FILE", calibrate.PIECE)
    monkeypatch.setattr(binding, "visible_gpus", lambda choice: 0)
    monkeypatch.setattr(
        calibrate, "calibrate", lambda *_: replace(nominal_cpu(3, 1 << 30), date="2025-01-31", host="n1")
    )
    out = planned(capsys, "--calibrate", "--at", str(place))
    file = place / "config" / "meshrun" / "rates.json"
    assert out.splitlines()[-1] == f"saved to {file}"
    assert "read and write" not in out
    assert "host memory" in out
    kept = load(file)
    assert kept is not None
    assert (kept.host, kept.cores) == ("n1", 3)
    assert "CPU, cpu; rates measured on n1" in planned(capsys, "laplacian", "in.npy", "--ranks", "2")


def test_the_folder_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    assert rates_file() == place / "config" / "meshrun" / "rates.json"
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert rates_file() == place / ".config" / "meshrun" / "rates.json"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "Missing JOB, or --calibrate"),
        ("--calibrate laplacian in.npy --ranks 2", "--calibrate measures the machine and takes no job"),
        ("--calibrate --at nowhere", "folder does not exist"),
        ("laplacian in.npy", "Missing option '--ranks'"),
        ("laplacian in.npy --ranks 0", "0 is not in the range"),
        ("laplacian in.npy --ranks 2 --gpu mi300", "unknown GPU: got mi300"),
        ("laplacian --ranks 2", "neither INPUT nor --shape"),
        ("laplacian --input-dtype int8 --ranks 2", "neither INPUT nor --shape"),
        ("laplacian in.npy --shape 5x5 --ranks 2", "in.npy has another shape than --input-shape"),
        ("laplacian in.npy --input-dtype int8 --ranks 2", "in.npy has another dtype than --input-dtype"),
        ("laplacian in.raw --ranks 2", "Try: --input-shape 1000x1000 --input-dtype float32"),
        ("laplacian in.raw --shape 100x80 --input-dtype int8 --ranks 2", "in.raw does not have this shape"),
        ("laplacian --shape 5x5 --ranks 2", "--input-dtype float32"),
        ("laplacian --shape 5y5 --input-dtype int8 --ranks 2", "--shape does not parse"),
        ("laplacian --shape 5x5 --input-dtype float31 --ranks 2", "unknown --input-dtype: got float31"),
        ("laplacian --shape 5x5 --input-dtype complex64 --ranks 2", "cannot work on elements of this type"),
        ("laplacian none.npy --ranks 2", "none.npy does not exist"),
        ("laplacian mine.py --ranks 2", "unknown file format"),
        ("laplacian in.npy --ranks 2 --grid 3x1", "--grid does not use every rank"),
        ("laplacian in.npy --ranks 2 --json no/plan.json", "the plan's folder does not exist"),
        ("laplacian in.npy --ranks 2 --host-memory lots", "'lots' is no"),
        ("statistics in.npy --ranks 2", "job statistics cannot be planned"),
        ("mine.py:total in.npy --ranks 2", "job total cannot be planned"),
        ("airflow teapot --ranks 2", "unknown SHAPE: got teapot"),
        ("airflow cylinder --ranks 2 --boundary wrap", "--boundary does not apply to job airflow"),
        ("airflow cylinder --ranks 2 --hosts 3", "--hosts is more than --ranks"),
        ("airflow --ranks 2", "job airflow takes one input"),
        (
            "airflow sphere --size 2048x2048x1024 --ranks 2 --gpu h200",
            "2048x2048x1024 cells do not fit the memory of 2 ranks: got 179,555,859,200 bytes a rank",
        ),
        ("airflow sphere --size 2048x2048x1024 --ranks 2 --gpu h200", "Try: at least 4 GPUs"),
        # These were looked at cell by cell first, for hours.
        ("airflow cylinder --size 9000000x9000000 --ranks 4", "fit the memory of 4 ranks"),
        ("airflow airfoil:2412 --size 9000000x9000000 --ranks 4 --gpu h200", "fit the memory of 4 ranks"),
        (
            "airflow sphere --size 1024x1024x1024 --ranks 1 --gpu h200 --copies two",
            "Try: at least 2 GPUs, or --copies one",
        ),
        ("airflow cylinder --ranks 2 --copies three", "'three' is not one of 'auto', 'one', 'two'"),
        ("laplacian in.npy --ranks 2 --copies one", "--copies does not apply to job laplacian"),
        ("laplacian in.npy --ranks 2 --network-rate 5", "--network-rate does not apply to job laplacian"),
        ("airflow cylinder --ranks 2 --exchange-rate 5", "--exchange-rate does not apply to job airflow"),
        ("fft in.npy --ranks 2 --grid 2x1", "--grid does not apply to job fft"),
        ("fft in.npy --ranks 2 --exchange-rate 0", "0.0 is not in the range"),
        ("fft in.npy --ranks 2 --axes 7", "there is no axis 7"),
        ("fft in.npy --ranks 2 --host-memory 1K --gpu cpu", "does not fit the memory of 2 rank(s)"),
        ("transpose in.npy --ranks 2 --axes 1", "the axes are no permutation"),
        ("matmul in.npy --ranks 2", "job matmul takes 2 inputs: got 1 file"),
        ("matmul --shape 3x4,5x6 --dtype f4 --ranks 2", "do not multiply: got A of shape (3, 4) and B of"),
        (
            "matmul --shape 3x4,4x6,2 --dtype f4 --ranks 2",
            "number of inputs: got 3, expected 2, or 1",
        ),
        ("matmul --shape 3x4,4x6,2 --dtype f4,f8 --ranks 2", "of inputs: got 3 shapes and 2 dtypes"),
        ("matmul --shape 3x4,4x6 --dtype f4,f99 --ranks 2", "unknown --input-dtype: got f99"),
        ("matmul --shape 3x4, --dtype f4 --ranks 2", "--shape does not parse"),
        ("laplacian --shape 5x5,6x6 --input-dtype f4 --ranks 2", "number of inputs: got 2, expected 1"),
        ("mine.py:broken in.npy --ranks 2", "job broken fails when called on zeros"),
        ("mine.py:clash in.npy --ranks 2 --run-hosts 3", "--run-hosts"),
        ("nothing in.npy --ranks 2", "unknown job: got nothing"),
        ("mine.py:spread in.npy --ranks 2 --steps 0", "'--steps': 0 is not in the range"),
        (
            "mine.py:spread in.npy --ranks 2 --steps 9 --depth 2",
            "steps in chunks have no plan: got --depth 2",
        ),
        ("mine.py:halved in.npy --ranks 2 --copies one", "--copies does not apply to job halved"),
        (
            "mine.py:halved --shape 9x9 --dtype int32 --ranks 2 --steps 9",
            "its result cannot become its input block: got float64 of shape 9x9",
        ),
        ("fft in.npy --ranks 2 --steps 9", "No such option '--steps'"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split()]) == 2
    written = capsys.readouterr()
    (line,) = written.err.splitlines()
    assert line.startswith("meshrun: ")
    assert sentence in line
    assert written.out == ""


def test_a_job_that_takes_steps_is_planned_by_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = "airflow cylinder --size 1024x512 --ranks 2 --gpu h200 --json plan.json"
    assert main(["plan", *words.split()]) == 0
    plan = json.loads(Path("plan.json").read_text())
    populations, kinds = 9 * (256 + 2) * in_lines(1024 + 2, 4), (256 + 2) * in_lines(1024 + 2, 1)
    assert plan["memory"] == 2 * populations + kinds
    assert plan["copies"] == 2
    assert plan["memory_by_copies"] == {"one": populations * (258 + 17) // 258 + kinds, "two": plan["memory"]}
    assert plan["exchange_bytes"] == 2 * 1024 * 3 * 4  # a row above and one below of three populations
    assert plan["moved_bytes"] == 256 * 1024 * (2 * 9 * 4 + 1)
    assert plan["steps"] == 4 * 1024 / 0.1
    assert plan["seconds"] == pytest.approx(plan["steps"] * plan["moved_bytes"] / 4.8e12)
    assert main(["plan", *words.replace("h200", "cpu").split()]) == 0
    on_cpus = json.loads(Path("plan.json").read_text())
    assert 60 < plan["operations"] == on_cpus["operations"] < 80  # outside branches; of all, 217
    assert plan["enough_ranks"] == 1
    printed = capsys.readouterr().out
    assert "halos of a rank and step" in printed
    assert "1 GPU would do" in printed


@pytest.mark.parametrize("more", ["--fields a.h5 --fields-every 100", "--forces a.csv", "--isolines 4"])
def test_a_plan_has_the_files_beside_the_film_but_no_film(more: str) -> None:
    """A traceback ended the plan of a run with fields, whose name is compared with the film's."""
    pytest.importorskip("h5py")
    assert main(["plan", *f"airflow cylinder --size 128x64 --ranks 2 --gpu h200 {more}".split()]) == 0
    assert not Path("a.h5").exists()


def test_a_transform_is_planned_by_its_exchanges(capsys: pytest.CaptureFixture[str]) -> None:
    """1024^3 complex64 on 2 H200: half of each rank's 4.3 GB goes to the other, beside two of three axes."""
    words = "fft --shape 1024x1024x1024 --dtype complex64 --ranks 16 --gpu h200 --json plan.json"
    assert main(["plan", *words.split()]) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["hosts"], plan["facts"]["process_grid"]) == (2, [16])
    assert plan["memory"] == 4 * 8 * 1024**3 / 16
    (exchange,) = [row for row in plan["stages"] if row["name"] == "exchange"]
    block = 8 * 1024**3 / 16
    assert exchange["amount"] == block * 15 / 16
    far = block * 8 / 16  # to the other host's 8 ranks, at the network's rate
    assert exchange["seconds"] == pytest.approx(far / 50e9 + 8 * 15 * 7e-6)
    assert exchange["beside"]
    moved = sum(row["amount"] for row in plan["stages"] if row["name"] == "transform")
    assert moved == 2 * 3 * block
    assert [row["ranks"] for row in plan["by_ranks"]] == [1, 2, 4, 8, 16]
    assert plan["by_ranks"][-1]["seconds"] == plan["seconds"] > plan["in_memory_seconds"]
    assert main(["plan", *words.split(), "--network-rate", "25"]) == 0
    slower = json.loads(Path("plan.json").read_text())
    assert slower["in_memory_seconds"] > 1.5 * plan["in_memory_seconds"]
    assert "25 GB/s  as given" in capsys.readouterr().out


def test_a_transpose_and_a_product_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        capsys, "transpose", "--shape", "40000x40000", "--dtype", "float64", "--ranks", "2", "--gpu", "h200",
        "--device-memory", "8G",
    )  # fmt: skip
    assert "passes: 4" in found
    words = "matmul --shape 8192x8192 --dtype float32 --ranks 4 --gpu h200 --json plan.json"
    assert "summa on 2x2 ranks" in planned(capsys, *words.split())
    plan = json.loads(Path("plan.json").read_text())
    (product,) = [row for row in plan["stages"] if row["name"] == "multiply"]
    assert product["amount"] == 2 * 8192**3 / 4
    unknown = planned(capsys, *words.replace("h200", "t4").split())
    assert "multiply" not in unknown  # no rate of its products is known
    one = planned(capsys, *words.replace("ranks 4", "ranks 1").replace("h200", "cpu").split())
    assert "exchange" not in one


def test_each_factor_of_a_product_has_its_shape_and_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    """As the plan of files has them; also vectors, and one dtype for both."""
    np.save("a.npy", np.ones((300, 200), np.float32))
    np.save("b.npy", np.ones((200, 250)))
    words = "--ranks 4 --gpu cpu --json"

    def plan(arguments: str) -> dict[str, Any]:
        assert main(["plan", *f"matmul {arguments} {words} plan.json".split()]) == 0
        capsys.readouterr()
        found: dict[str, Any] = json.loads(Path("plan.json").read_text())
        return found

    described = plan("--shape 300x200,200x250 --dtype float32,float64")
    assert described == plan("a.npy b.npy")
    assert "on 300x200 float32 and 200x250 float64 to 300x250 float64: 4 ranks" in render(described)
    assert plan("--shape 200,200x250 --dtype float32")["result"] == {"shape": [250], "dtype": "float32"}


def test_a_raw_file_in_fortran_order_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape", "80x100", "--input-dtype", "float32", "--order", "F", "--ranks", "2")
    assert "laplacian on 80x100 float32" in planned(capsys, "laplacian", "in.raw", *words)


def test_where_two_copies_do_not_fit_one_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    words = "airflow sphere --size 2048x2048x1024 --ranks 4 --gpu h200 --json plan.json"
    assert main(["plan", *words.split()]) == 0
    plan = json.loads(Path("plan.json").read_text())
    planes, plane, kinds = 256 + 2, 19 * 2050 * in_lines(2050, 4), 258 * 2050 * in_lines(2050, 1)
    assert plan["memory_by_copies"]["two"] == planes * 2 * plane + kinds > plan["memory_limit"]
    apart = 256 // 16 + 1  # planes of a band and one beside it
    assert plan["memory_by_copies"]["one"] == (planes + apart) * plane + kinds
    assert plan["memory"] == plan["memory_by_copies"]["one"]
    assert plan["copies"] == 1
    assert plan["enough_ranks"] == 4
    assert "with halos, one copy of what steps change" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "copies"), [("one", 1), ("two", 2), ("auto", 2)])
def test_the_copies_that_are_asked_for_are_planned(
    word: str, copies: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "airflow cylinder --size 1024x512 --ranks 2 --gpu h200 --json plan.json --copies"
    assert main(["plan", *words.split(), word]) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert plan["copies"] == copies
    assert plan["memory"] == plan["memory_by_copies"]["one" if copies == 1 else "two"]
    assert plan["bytes_per_cell"] == plan["memory"] / (256 * 1024)
    assert f"with halos, {'one copy' if copies == 1 else 'two copies'} of what" in capsys.readouterr().out


def in_lines(cells: int, itemsize: int) -> int:
    """The bytes of a row that a GPU's kernel takes, rounded up to whole lines of its cache."""
    return -(-cells * itemsize // 128) * 128


def steps_of(words: str) -> dict[str, Any]:
    assert main(["plan", *words.split(), "--json", "plan.json"]) == 0
    plan: dict[str, Any] = json.loads(Path("plan.json").read_text())
    return plan


def test_a_field_that_another_one_has_next_is_not_written() -> None:
    """The next `before` is what `u` is now: on GPUs, in two copies and single steps."""
    words, cells = "mine.py:wave --shape 64x48x80 --dtype float32 --ranks 2 --steps 9", 32 * 48 * 80
    assert steps_of(f"{words} --gpu h200")["moved_bytes"] == 3 * 4 * cells
    assert steps_of(f"{words} --gpu h200 --copies one")["moved_bytes"] == 4 * 4 * cells
    assert steps_of(f"{words} --gpu cpu")["moved_bytes"] == 4 * 4 * cells


LARGE = "--shape 40000x30000 --dtype float32 --gpu h200"


def test_steps_of_a_function_are_planned_as_its_kernel_takes_them() -> None:
    plan = steps_of(f"mine.py:spread {LARGE} --ranks 2 --steps 1000")
    several = plan["steps_per_kernel"]
    assert 4 <= several <= 8
    assert plan["steps"] == 1000
    assert plan["memory"] == plan["memory_by_copies"]["two"] == 2 * 20002 * in_lines(30002, 4)
    assert plan["moved_bytes"] == 2 * 20000 * 30000 * 4
    assert plan["exchange_bytes"] == 2 * 30000 * 4
    assert plan["step_seconds"] == pytest.approx(plan["moved_bytes"] / several / 4.8e12)
    assert plan["seconds"] == pytest.approx(1000 * plan["step_seconds"])
    assert plan["inputs"] == {"u": {"shape": [40000, 30000], "dtype": "float32"}}
    assert steps_of(f"mine.py:spread {LARGE} --ranks 2 --steps 3")["steps_per_kernel"] == 3
    assert steps_of("mine.py:spread in.npy --ranks 50 --steps 9 --gpu h200")["steps_per_kernel"] == 2  # rows
    assert steps_of("mine.py:spread in.npy --ranks 2 --steps 90 --gpu cpu")["steps_per_kernel"] == 8
    one = steps_of(f"mine.py:spread {LARGE} --ranks 2 --steps 9 --copies one")
    assert one["copies"] == 1
    assert one["memory"] == one["memory_by_copies"]["one"] < 0.6 * plan["memory"]


def test_functions_that_are_called_step_by_step_need_more_memory() -> None:
    kernel, plan = (steps_of(f"mine.py:{name} {LARGE} --ranks 2 --steps 9") for name in ("spread", "called"))
    assert plan["steps_per_kernel"] == 1
    assert plan["operations"] is None
    assert plan["memory"] > 2 * kernel["memory"]  # its own arrays
    watched = steps_of(f"mine.py:watched {LARGE} --ranks 2 --steps 9")
    assert watched["steps_per_kernel"] == 1
    assert watched["memory"] == kernel["memory"] + 20000 * 30000 * 8  # of what feeds no input


def test_how_many_gpus_hold_the_fields_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = "mine.py:spread --shape 400000x400000 --dtype float32 --gpu h200 --steps 9 --ranks"
    assert main(["plan", *words.split(), "2"]) == 2
    line = capsys.readouterr().err
    assert "400000x400000 do not fit the memory of 2 ranks, and steps in chunks have no plan" in line
    (enough,) = re.findall(r"Try: at least (\d+) GPUs$", line.strip())
    assert steps_of(f"{words} {enough}")["enough_ranks"] == int(enough)
    assert main(["plan", *words.split(), str(int(enough) - 1)]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"Try: at least {enough} GPUs, or --copies one")


def test_air_past_nothing_takes_several_steps_in_a_kernel() -> None:
    """Past a body some cells are set before each step."""
    words = "--size 1024x512 --ranks 2 --gpu h200 --steps 100"
    body, none = (steps_of(f"airflow {shape} {words}") for shape in ("cylinder", "none"))
    assert (body["steps_per_kernel"], none["steps_per_kernel"]) == (1, 4)
    assert body["steps"] == none["steps"] == 100


def test_no_ranks_are_started_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "2", "plan", "laplacian", "in.npy", "--ranks", "2"]) == 2
    assert "`meshrun plan` starts no ranks; remove -n" in capsys.readouterr().err


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "plan.md").read_text()
    ((words, shown),) = re.findall(r"^```console\n\$ meshrun plan (.*)\n((?:.*\n)*?)```", page, re.MULTILINE)
    assert planned(capsys, *words.split()) == shown


LOOPS = """
import meshrun
import numpy as np

@meshrun.distribute(outputs=("u",))
def relaxed(u):
    change = np.max(u)
    while change > 0.1:
        for _ in range(6):
            before = u.copy()
            u[1:-1] = (before[2:] + before[:-2]) / 2
        change = np.max(np.abs(u - before))
    return u

@meshrun.distribute(outputs=("u",))
def swept(u, *, n: int = 9):
    for _ in range(n):
        before = u.copy()
        u[1:-1] = (before[2:] + before[:-2]) / 2
    return u
"""


@pytest.mark.parametrize("steps", [[], ["--steps", "3"]])
def test_iterations_of_loops_are_counted(
    tmp_path: Path, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    words = ["--shape", "64x32", "--input-dtype", "float64", "--gpu", "h200", "--ranks", "2", *steps]
    main(["plan", f"{tmp_path}/loops.py:relaxed", *words])
    text = capsys.readouterr().out
    assert "  loop in line 8: the number of iterations is unknown: one is counted\n" in text
    assert "  loop in line 9: 6 iterations are counted\n" in text
    moved = {}
    for n in (9, 18):
        main(
            [
                "plan",
                f"{tmp_path}/loops.py:swept",
                *words,
                "--n",
                str(n),
                "--json",
                str(tmp_path / "plan.json"),
            ]
        )
        assert f"  loop in line 17: {n} iterations are counted\n" in capsys.readouterr().out
        record = json.loads((tmp_path / "plan.json").read_text())
        kernel = next(one for one in record.get("stages", [{"name": "kernel"}]) if one["name"] == "kernel")
        moved[n] = kernel.get("bytes", record.get("moved_bytes"))
    # Each iteration reads and writes the cells of the rank.
    assert moved[18] - moved[9] == 9 * 2 * 8 * 32 * 32

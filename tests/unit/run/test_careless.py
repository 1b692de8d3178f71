"""Numbers and names that no run can have are refused in a sentence, and what is said of a run is true."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.launch.cli import selftest
from meshrun.launch.cli.main import main
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi.library import Library
from meshrun.runner.errors import RunError, UserError, describe
from meshrun.runner.forecast.machine import nominal_cpu, rates_file, save
from meshrun.runner.job.discover import find
from meshrun.runner.report.summary import render
from meshrun.runner.system import launcher

JOBS = """
import pathlib
import meshrun

@meshrun.map_blocks
def same(block):
    return block

@meshrun.map_blocks
def tabled(block, *, tables: pathlib.Path):
    return block

@meshrun.job
def size(world, input, output):
    open(output, "w").close()
    return {"size": world.size}

@meshrun.map_blocks(out=lambda shape, dtype: ((shape[0] - 2, *shape[1:]), dtype))
def shortened(block, *, out):
    out[...] = block[1:-1]

@meshrun.map_blocks(out=lambda shape, dtype: shape)
def shaped(block, *, out):
    out[...] = block

@meshrun.map_blocks(out=lambda shape, dtype: (shape, "f9"))
def typed(block, *, out):
    out[...] = block

@meshrun.reduce_blocks(combine=max)
def nothing(block):
    pass

@meshrun.map_blocks(out=lambda shape, dtype: ((shape[0], 3), dtype))
def narrowed(block, *, out):
    out[...] = block[:, ::2]

@meshrun.map_blocks(out=lambda shape, dtype: ((shape[0] // 8, shape[1] // 4), dtype))
def thinned(block, *, out):
    out[...] = block[::8, :4:4]
"""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@meshrun.map_blocks
def failing(block: Any) -> Any:
    raise Unprintable


@meshrun.job
def unknown(world: Any) -> Any:
    return {"a": [1, (object(),)]}


@meshrun.map_blocks
def double(block: Any, *, out: Any) -> None:
    out[...] = 2 * block


@meshrun.map_blocks
def cast(block: Any, *, to: str) -> Any:
    return block.astype(to)


@meshrun.map_blocks
def large(block: Any) -> Any:
    return np.ma.masked_less(block, 3)


@meshrun.reduce_blocks(combine=np.ma.maximum, whole_rows=True)
def peaks(block: Any) -> Any:
    return np.ma.masked_less(block.max(axis=0), 597)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "meshrun.runner.world.rank_process.on_termination", lambda _: None
    )  # this process goes on afterwards
    monkeypatch.setattr("meshrun.launch.cli.errors.LINGER", 0.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.arange(600, dtype=np.float32).reshape(100, 6))
    np.save("even.npy", np.load("in.npy")[:96])
    Path("mine.py").write_text(JOBS)
    Path("text.txt").write_text("words\n")
    Path("folder").mkdir()
    for name in ("null", "null.npy"):
        os.mkfifo(name)
    Path("circle.npy").symlink_to("circle.npy")
    return tmp_path


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Run words that must be refused; ~ is an empty word. The sentence, of which nothing is left behind."""

    def run(line: str) -> str:
        before = files(place)
        assert main([word if word != "~" else "" for word in line.split()]) == 2
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err.count("\n") == 1
        assert files(place) == before
        return written.err

    return run


def files(place: Path) -> list[Path]:
    """All but what Python keeps of modules that it has imported."""
    return sorted(path for path in place.rglob("*.*") if "__pycache__" not in path.parts)


RUN, PLAN = "run mine.py:same in.npy out.npy", "plan mine.py:same in.npy --ranks 2"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        # Numbers.
        (f"{RUN} --chunk-bytes 1000000T", "--chunk-bytes is more than a rank's chunks may take"),
        (f"{RUN} --host-memory 1000000T", "--host-memory is more than this host has: got 1,099,511"),
        (f"{RUN} --depth 99999999", "99999999 is not in the range 1<=x<=1024"),
        (f"{RUN} --grid 1000000x1000000 --chunk-bytes 1M",
         "--grid cuts the array into too many blocks: got 1000000x1000000 (1,000,000,000,000 blocks), "
         "expected at most 1,048,576"),
        (f"{RUN} --grid ~", "empty argument after --grid"),
        (f"{RUN} --grid ٣", "--grid does not parse: got '٣'"),
        ("run mine.py:same raw.raw out.npy --shape 99999999999x99999999999 --dtype f4",
         "--shape is larger than any array: got 99999999999x99999999999"),
        (f"{PLAN}00000000", "is not in the range 1<=x<=131072"),
        (f"{PLAN} --hosts 5", "--hosts is more than --ranks: got 5 hosts, expected at most 2"),
        (f"{PLAN} --chunk-bytes 1000000T", "--chunk-bytes is more than a rank's chunks may take"),
        (f"{PLAN} --gpu a100 --device-memory 81G", "--device-memory is more than A100 has: got 86,973,08"),
        (f"{PLAN} --depth 1025", "1025 is not in the range 1<=x<=1024"),
        (f"{PLAN} --grid ~", "empty argument after --grid"),
        (f"{PLAN} --gpu ~", "empty argument after --gpu"),
        # Names.
        ("run mine.py:same ~ out.npy", "INPUT has no name: got '', expected a file or folder"),
        ("run mine.py:same in.npy ~", "OUTPUT has no name: got ''"),
        (f"{RUN} --json ~", "empty argument after --json"),
        (f"{RUN} --timeline ~", "empty argument after --timeline"),
        (f"{RUN} --json text.txt/a.json", "the record's folder is a file: got text.txt, expected a folder"),
        ("run ~ in.npy out.npy", "unknown job: got '', expected airflow"),
        ("plan mine.py:same ~ --ranks 2", "INPUT has no name"),
        (f"{PLAN} --json ~", "empty argument after --json"),
        ("run mine.py:same null.npy out.npy", "cannot read null.npy: got a device or a pipe, expected"),
        ("run mine.py:same circle.npy out.npy",
         "INPUT cannot be used: got circle.npy: Too many levels of symbolic links"),
        ("run mine.py:same in.npy circle.npy", "OUTPUT cannot be used: got circle.npy: Too many levels of"),
        (f"{RUN} --json circle.npy", "the record's name cannot be used: Too many levels of symbolic"),
        (f"{PLAN} --json circle.npy", "--json cannot be used: got circle.npy: Too many levels of symbolic"),
        ("plan mine.py:same circle.npy --ranks 2", "INPUT cannot be used: got circle.npy: Too many levels"),
        ("doctor --json circle.npy", "cannot be used: got circle.npy: Too many levels of symbolic links"),
        ("plan --calibrate --at ~", "--at has no name"),
        ("plan --calibrate --at text.txt", "the test file's folder is a file: got text.txt"),
        ("doctor --json ~", "empty argument after --json"),
        ("doctor --json folder", "the record is a folder: got folder"),
        ("doctor --json gone/a.json", "the record's folder does not exist: got gone. Try: mkdir -p gone"),
        ("doctor --json text.txt/a.json", "the record's folder is a file: got text.txt"),
        ("run mine.py:same gone/in.npy out.npy", "gone/in.npy does not exist: there is no folder gone"),
        ("run mine.py:same text.txt/in.npy out.npy", "text.txt/in.npy does not exist: text.txt is a file"),
        ("run mine.py:same In.npy out.npy", "In.npy does not exist. Try: in.npy"),
        ("run mine.py:same in.nyp out.npy", "in.nyp does not exist. Try: in.npy"),
        ("run mine.py:same unlike.jpg out.npy", "unlike.jpg does not exist"),
        ("run mien.py:same in.npy out.npy", "mien.py does not exist. Try: mine.py"),
        ("run mine.py:sam in.npy out.npy", "mine.py declares no job 'sam': its jobs are same, "),
        ("run mine.py:same in.npy /proc/out.npy", "no file can be created in /proc: got /proc/out.npy"),
        ("run mine.py:same in.npy /proc/gone/out.npy", "does not exist: got /proc/gone. Try: another folder"),
        ("run mine.py:same in.npy gone/out.npy", "folder does not exist: got gone. Try: mkdir -p"),
        (f"{RUN} --json /sys/a.json", "no file can be created in /sys: got /sys/a.json. Try: another folder"),
        # What cannot be done.
        ("run mine.py:shaped in.npy out.npy",
         "job shaped: out did not return a shape and a dtype, such as (shape, 'float32'): got (100, 6)"),
        ("run mine.py:typed in.npy out.npy", "job typed: out did not return a shape and a dtype"),
        ("run mine.py:nothing in.npy", "job nothing returned nothing for a block. Try: return a partial"),
        ("run mine.py:size in.npy out.npy --verify",
         "--verify: job size has no reference to compare with. Try: without --verify; a job of your own "
         "takes reference= or verify= in its decorator"),
        (f"run mine.py:same raw.raw out.npy --shape {'x'.join('1' * 65)} --dtype f4",
         "--shape has more axes than an array can have: maximum supported dimension"),
        ("run mine.py:same -- in.npy out.npy --verify", "unexpected extra argument (--verify)"),
        ("selftest --mutate --device cuda", "--mutate runs its ranks on the CPU; remove --device"),
        ("run mine.py:shortened in.npy out.npy",
         "changes an axis along which the array is cut: got (98, 6) from (100, 6), expected the first axis "
         "unchanged, or longer or shorter by a factor that is the same for all lengths. Try: a result with "
         "the input's length along the first axis, which every --grid cuts, or a fixed multiple or part of "
         "it"),
        ("run mine.py:narrowed in.npy out.npy --grid 1x1000 --chunk-bytes 1K",
         "expected the first 2 axes unchanged, or longer or shorter by a factor that is the same for all "
         "lengths. Try: --grid 0, which cuts no other axis"),
        ("run mine.py:thinned in.npy out.npy",
         "job thinned: its result has 1/8 of the input's length along axis 0, along which the array is cut, "
         "and that length does not divide: got 100, expected a multiple of 8, such as 104"),
        ("plan mine.py:thinned in.npy --ranks 2", "got 100, expected a multiple of 8, such as 104"),
        ("run mine.py:thinned even.npy out.npy --grid 1x2 --chunk-bytes 4K",
         "has 1/4 of the input's length along axis 1, along which the array is cut, and that length does not "
         "divide: got 6, expected a multiple of 4, such as 8. Try: --grid 0, which cuts no other axis"),
        ("run mine.py:thinned even.npy out.npy --chunk-bytes 100",
         "--chunk-bytes is less than 8 rows, which the result needs together, with the halo: got 100 bytes, "
         "expected at least 192"),
        ("run mine.py:thinned even.npy out.npy --steps 2",
         "job thinned cannot take steps: its result cannot become its input block: got float32 of shape "
         "12x1, expected float32 of shape 96x6. Try: one pass, no --steps"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(refused: Callable[[str], str], line: str, sentence: str) -> None:
    assert sentence in refused(line)


@pytest.mark.parametrize("line", ["in.npy out.npy --tables .", "in.npy folder/out.h5:a --tables folder"])
def test_an_output_in_a_folder_that_must_not_change_is_refused_before_the_run(
    refused: Callable[[str], str], line: str
) -> None:
    assert "the folder of --tables must not change during the run: got " in refused(
        f"run mine.py:tabled {line}"
    )
    assert main(["run", "mine.py:tabled", "in.npy", "out.npy", "--tables", "folder"]) == 0


def test_a_missing_output_is_no_reason_to_type_a_name_that_is_not_installed(
    refused: Callable[[str], str],
) -> None:
    assert refused("run mine.py:same in.npy").endswith(
        ": job same writes a file: OUTPUT is missing: expected OUTPUT after INPUT\n"
    )
    with pytest.raises(UserError) as caught:
        find("laplacian").run(np.ones((3, 3)))
    assert str(caught.value).endswith("OUTPUT is missing: expected OUTPUT after INPUT")


@pytest.mark.parametrize(
    ("job", "file", "cells"),
    [("narrowed", "in.npy", np.s_[:, ::2]), ("thinned", "even.npy", np.s_[::8, :4:4])],
)
def test_the_advice_for_a_result_of_another_shape_can_be_taken(job: str, file: str, cells: Any) -> None:
    assert main(["run", f"mine.py:{job}", file, "out.npy", "--grid", "0"]) == 0
    np.testing.assert_array_equal(np.load("out.npy"), np.load(file)[cells])


@pytest.mark.parametrize("dtype", ["object", "S3"])
def test_a_result_that_is_no_numbers_is_a_failure(dtype: str) -> None:
    with pytest.raises(RunError, match="job cast did not return numbers: got dtype "):
        cast.run("in.npy", "out.npy", to=dtype)
    assert not Path("out.npy").exists()


@pytest.mark.parametrize("job", [large, peaks])
def test_a_result_with_masked_cells_is_a_failure(job: Any) -> None:
    with pytest.raises(RunError, match=r"a masked array, and outputs have no mask: got [\d,]+ masked cells"):
        job.run("in.npy", "out.npy")
    assert not Path("out.npy").exists()


def test_a_chunk_is_no_longer_than_the_array() -> None:
    assert double.run("in.npy", "out.npy", chunk_bytes="16M")["stream"]["rows"] == 100


def test_memory_that_a_measured_machine_does_not_have_is_refused(refused: Callable[[str], str]) -> None:
    save(replace(nominal_cpu(3, 1 << 30), date="2025-01-31", host="n1"), rates_file())
    assert (
        "--host-memory is more than cpu has: got 2,147,483,648 bytes, expected at most 1,073,741,824"
        in refused(f"{PLAN} --host-memory 2G")
    )


def test_a_plan_says_what_machine_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> tuple[str, bool]:
        assert main([*PLAN.split(), "--json", "plan.json", *words]) == 0
        assumed: bool = json.loads(Path("plan.json").read_text())["machine"]["assumed"]
        return capsys.readouterr().out, assumed

    line = "no --gpu and no measured rates: assuming hosts with 8 H200 GPUs; use --gpu cpu for hosts"
    out, assumed = planned()
    assert line in out
    assert assumed
    assert any(note.startswith(line) for note in json.loads(Path("plan.json").read_text())["notes"])
    for words in (["--gpu", "h200"], ["--gpu", "cpu"]):
        out, assumed = planned(*words)
        assert "assumed" not in out
        assert not assumed
    save(replace(nominal_cpu(3, 1 << 30), date="2025-01-31", host="n1"), rates_file())
    out, assumed = planned()
    assert "assumed" not in out
    assert not assumed


def test_a_guess_is_not_shown_beside_what_was_measured() -> None:
    record = double.run("in.npy", "out.npy", device="cpu")
    assert [row["source"] for row in record["plan"]] == ["nominal"] * len(record["plan"])
    assert "forecast" not in render(record)


def test_a_forecast_of_measured_rates_is_shown_beside_the_run() -> None:
    save(replace(nominal_cpu(3, 1 << 30), date="2025-01-31", host="n1"), rates_file())
    record = double.run("in.npy", "out.npy", device="cpu")
    assert {row["source"] for row in record["plan"]} == {"measured 2025-01-31"}
    assert "forecast / measured" in render(record)


def test_a_process_alone_tells_the_mpi_that_ranks_would_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mpi_library, "loaded", lambda: Library("Some MPI", 7))
    assert main(["doctor", "--device", "cpu", "--json", "facts.json"]) == 0
    assert "MPI         Some MPI 7\n" in capsys.readouterr().out
    assert json.loads(Path("facts.json").read_text())["ranks"][0]["mpi"] == "Some MPI 7"
    monkeypatch.setattr(mpi_library, "loaded", lambda: None)
    assert main(["doctor", "--device", "cpu"]) == 0
    assert "MPI         none\n" in capsys.readouterr().out


def test_a_selftest_without_its_device_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.run.installation.selftest.main", lambda **_: 2)
    monkeypatch.setattr("meshrun.launch.mpi.launcher.find", lambda: pytest.fail("ranks are started"))
    assert selftest.check_installation("cuda", debug=False) == 2


def test_a_jobs_failure_on_zeros_has_one_piece_of_advice(refused: Callable[[str], str]) -> None:
    Path("mine.py").write_text(
        JOBS + "\n@meshrun.map_blocks\ndef broken(block):\n    raise ValueError('x')\n"
    )
    assert refused("plan mine.py:broken in.npy --ranks 2").count("Try: ") == 1


def test_an_exception_without_a_text_is_named() -> None:
    with pytest.raises(Unprintable) as raised:
        failing.run("in.npy", "out.npy", device="cpu")
    assert re.fullmatch(r"Unprintable \(.*test_careless\.py:\d+\)\. Try: .*", describe(raised.value))


def test_a_result_that_no_record_can_hold_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(unknown.run("in.npy", device="cpu")["result"]["a"][1][0], object)
    Path("odd.py").write_text(
        "import meshrun\n\n@meshrun.job\ndef odd(world):\n    return {'a': [1, (object(),)]}\n"
    )
    for more in ([], ["--json", "r.json"]):
        with pytest.raises(SystemExit, match="1"):
            main(["run", "odd.py:odd", "in.npy", "--device", "cpu", *more])
        said = capsys.readouterr().err
        assert said.startswith("meshrun: a record cannot hold a value of this kind: got object, expected")
        assert said.count("\n") == 1
        assert not Path("r.json").exists()


@pytest.mark.parametrize("more", [[], ["--chunk-bytes", "1K"], ["--steps", "3"]])
def test_a_function_that_changes_the_folder_leaves_no_files(
    place: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    Path("moving.py").write_text(
        "import os, meshrun\n\n@meshrun.map_blocks\ndef moved(block):\n"
        "    os.chdir('folder')\n    raise ValueError('after it')\n"
    )
    before = sorted(path.name for path in place.iterdir())
    with contextlib.suppress(SystemExit):
        assert main(["run", "moving.py:moved", "in.npy", "out.npy", "--device", "cpu", *more]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in place.iterdir() if path.name != "__pycache__") == before
    assert list((place / "folder").iterdir()) == []

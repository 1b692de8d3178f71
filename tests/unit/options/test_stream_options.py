"""What the command makes of words on how an array is streamed, and on files without a header."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typed import typed

from meshrun.launch.cli.main import main
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.form import Form
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options
from meshrun.runner.system import launcher

JOB = '''
import meshrun

@meshrun.map_blocks
def scale(block, *, factor: int = 2):
    """Multiply."""
    return block * factor

@meshrun.map_blocks
def cast(block, *, dtype: str = "float64", shape: int = 0):
    """With options of its own that a file has too."""
    return block.astype(dtype)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.setattr("meshrun.launch.cli.errors.LINGER", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(JOB)


Ran = Callable[..., tuple[dict[str, Any], Options]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The parameters and options that the runner gets for these words."""
    found: list[tuple[dict[str, Any], Options]] = []

    def fake_main(
        job: Job, input: str, output: str | None, parameters: Any, options: Options, **rest: Any
    ) -> int:
        found.append((parameters, options))
        return 0

    monkeypatch.setattr("meshrun.runner.run.entry.main", fake_main)

    def run(*words: str, job: str = "scale") -> tuple[dict[str, Any], Options]:
        assert main(["run", f"jobs.py:{job}", "in.raw", "out.npy", *words]) == 0
        return found.pop()

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The sentence with which these words are refused."""

    def run(*words: str) -> str:
        assert main(["run", "jobs.py:scale", "in.raw", "out.npy", *words]) == 2
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err.startswith("meshrun: ")
        assert len(written.err.splitlines()) == 1
        return written.err

    return run


def test_without_words_nothing_is_asked_of_the_stream(ran: Ran) -> None:
    _, options = ran()
    assert options.stream == StreamOptions()
    assert options.stream.named is None
    assert options.form is None


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--chunk-bytes", "64M"], "chunk_bytes", 64 << 20),
        (["--host-memory", "2G"], "host_memory", 2 << 30),
        (["--device-memory", "1.5G"], "device_memory", 3 << 29),
        (["--depth", "5"], "depth", 5),
        (["--resume"], "resume", True),
        (["--static"], "static", True),
        (["--timeline", "t.html"], "timeline", "t.html"),
    ],
)
def test_every_option_of_a_stream_reaches_it(ran: Ran, words: list[str], name: str, value: object) -> None:
    _, options = ran(*words)
    assert options.stream == StreamOptions(**{name: value})
    assert options.stream.named == words[0]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("1k", 1 << 10),
        ("1K", 1 << 10),
        ("64M", 64 << 20),
        ("64MB", 64 << 20),
        ("64MiB", 64 << 20),
        ("64mib", 64 << 20),
        ("1.5G", 3 << 29),
        ("0.5K", 512),
        ("2T", 2 << 40),
        ("100B", 100),
        (" 7K ", 7 << 10),
        ("1.0001K", 1024),
    ],
)
def test_a_size_is_a_number_of_bytes(ran: Ran, text: str, size: int) -> None:
    assert ran("--chunk-bytes", text)[1].stream.chunk_bytes == size


@pytest.mark.parametrize("option", ["--chunk-bytes", "--host-memory", "--device-memory"])
@pytest.mark.parametrize(
    "text", ["", "0", "0.1", "-1", "64 M", "M", "1e6", "64Q", "1.G", ".5G", "0x10", "1G1", "٣"]
)
def test_what_is_no_size_is_refused(refused: Callable[..., str], option: str, text: str) -> None:
    sentence = refused(option, text)
    assert option in sentence
    assert f"{text!r} is not a size; expected a number of bytes such as 64M or 1.5G" in sentence


@pytest.mark.parametrize("option", ["--chunk-bytes", "--host-memory", "--device-memory"])
@pytest.mark.parametrize("text", ["8388608T", "99999999999999999999", "9" * 400 + "G"])
def test_a_size_beyond_any_file_is_refused(refused: Callable[..., str], option: str, text: str) -> None:
    sentence = refused(option, text)
    assert option in sentence
    assert "is more than any file or memory has; expected at most 9223372036854775807 bytes" in sentence


def test_the_default_depth_said_aloud_is_an_option_of_a_stream(ran: Ran) -> None:
    _, options = ran("--depth", "3")
    assert options.stream.named == "--depth"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025", "999999999999999999999"])
def test_a_depth_is_a_whole_number_from_1_to_1024(refused: Callable[..., str], text: str) -> None:
    assert "--depth" in refused("--depth", text)


# ---- files without a header


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["--shape", "10x6"], Form((10, 6))),
        (["--shape", "7"], Form((7,))),
        (["--shape", "2X3x4"], Form((2, 3, 4))),
        (["--dtype", "float32"], Form(None, "float32")),
        (["--order", "F"], Form(None, None, "F")),
        (["--input-shape", "10x6", "--input-dtype", ">u2", "--input-order", "C"], Form((10, 6), ">u2", "C")),
    ],
)
def test_the_form_of_a_file_is_said_by_options(ran: Ran, words: list[str], form: Form) -> None:
    assert ran(*words)[1].form == form


@pytest.mark.parametrize("text", ["10x", "x", "axb", "-1x2", "1.5x2", "10 6", "10;6", "٣x3", "³"])
def test_a_shape_that_does_not_parse_is_refused(refused: Callable[..., str], text: str) -> None:
    assert refused("--shape", text) == (
        f"meshrun: --shape does not parse: got {text!r}, expected lengths joined by x: 1000x512\n"
    )


def test_more_shapes_than_inputs_are_refused(refused: Callable[..., str]) -> None:
    message = refused("--shape", "10,6")
    assert message.startswith(
        "meshrun: --shape and --dtype describe another number of inputs: got 2, expected 1"
    )
    assert "10x6" in message


def test_an_order_is_c_or_f(refused: Callable[..., str]) -> None:
    assert "--order" in refused("--order", "A")


def test_a_jobs_own_options_leave_the_files_longer_names(ran: Ran) -> None:
    words = [
        "--dtype",
        "int8",
        "--shape",
        "3",
        "--input-dtype",
        "float32",
        "--input-shape",
        "4x5",
        "--order",
        "F",
    ]
    parameters, options = ran(*words, job="cast")
    assert parameters == {"dtype": "int8", "shape": 3}
    assert options.form == Form((4, 5), "float32", "F")


def test_a_jobs_own_options_alone_say_nothing_of_the_file(ran: Ran) -> None:
    parameters, options = ran("--dtype", "int8", job="cast")
    assert parameters["dtype"] == "int8"
    assert options.form is None


def test_elementwise_has_a_dtype_of_its_own(ran: Ran) -> None:
    words = ["run", "elementwise", "in.raw", "out.npy", "--expression", "x"]
    found = []

    def fake_main(job: Any, input: str, output: str, parameters: Any, options: Options, **rest: Any) -> int:
        found.append((parameters["dtype"], options.form))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.run.entry.main", fake_main)
        assert main([*words, "--dtype", "uint8", "--shape", "4"]) == 0
        assert main([*words, "--input-dtype", "int16", "--shape", "4"]) == 0
    assert found == [("uint8", Form((4,))), ("float", Form((4,), "int16"))]


def test_the_help_of_a_job_shows_which_names_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "jobs.py:cast", "--help-all"]) == 0
    of_the_job, _, of_the_runner = capsys.readouterr().out.partition("\nRun:")
    assert "--dtype" in of_the_job
    assert "--input-dtype" in of_the_runner
    assert " --dtype" not in of_the_runner
    assert "--input-order, --order" in of_the_runner


# ---- the whole command


def command(*words: str, job: str = "jobs.py:scale") -> subprocess.CompletedProcess[str]:
    return typed("run", job, *words)


def test_a_picture_goes_through_whole_and_says_so() -> None:
    Image.new("L", (6, 4)).save("in.png")
    done = command("in.png", "out.png", "--chunk-bytes", "1M")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "meshrun: --chunk-bytes applies only to streamed runs: got in.png, which one "
        "rank reads or writes whole, expected files such as .npy, .zarr or .h5\n"
    )
    assert not Path("out.png").exists()


def test_a_picture_that_decodes_to_more_than_the_bound_is_not_decoded() -> None:
    Image.new("L", (2000, 1500)).save("in.png")
    done = command("in.png", "out.png", "--host-memory", "1M")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "meshrun: --host-memory is less than in.png needs, which is decoded as a whole: got 1,048,576 bytes, "
        "expected at least 3,000,000\n"
    )


def test_a_command_in_chunks_writes_what_one_in_one_piece_does() -> None:
    np.save("in.npy", np.arange(3000, dtype=np.int32).reshape(500, 6))
    whole = command("in.npy", "whole.npy")
    chunks = command("in.npy", "out.npy", "--chunk-bytes", "1K", "--depth", "2", "--timeline", "t.json")
    assert (whole.returncode, chunks.returncode) == (0, 0), whole.stderr + chunks.stderr
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert Path("t.json").exists()
    assert sorted(path.name for path in Path().iterdir()) == sorted(
        ["in.npy", "jobs.py", "out.npy", "t.json", "whole.npy"]
    )


def test_a_job_that_is_not_streamed_refuses_the_streams_options() -> None:
    """A reduction goes through its array in tiles of its own, and leaves nothing to resume."""
    np.save("in.npy", np.ones((50, 6)))
    done = command("in.npy", "--chunk-bytes", "1K", "--resume", job="statistics")
    assert done.returncode == 2, done.stderr
    assert "--chunk-bytes" in done.stderr


def test_overlap_says_nothing_to_chunks() -> None:
    np.save("in.npy", np.ones((50, 6)))
    done = command("in.npy", "out.npy", "--chunk-bytes", "1K", "--no-overlap")
    assert done.returncode == 2
    assert "--overlap" in done.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["in.npy", "jobs.py"]


def test_chunks_too_small_for_a_row_are_refused_with_nothing_written() -> None:
    np.save("in.npy", np.ones((50, 6)))
    done = command("in.npy", "out.npy", "--chunk-bytes", "47")
    assert done.returncode == 2
    assert done.stderr == (
        "meshrun: --chunk-bytes is less than a row with the halo: got 47 bytes, expected at least 48\n"
    )
    assert sorted(path.name for path in Path().iterdir()) == ["in.npy", "jobs.py"]

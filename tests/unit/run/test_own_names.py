"""A job's parameter may have the name of an option of a run: it wins, and the option is called run_NAME."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import meshrun
from meshrun.launch.cli.job_command import OWN, job_command
from meshrun.launch.cli.main import main
from meshrun.runner.errors import UserError
from meshrun.runner.job.discover import find
from meshrun.runner.options.plan_options import plan_rows
from meshrun.runner.options.run_options import RANKS, run_rows
from meshrun.runner.run.declare import DeclaredJob

OPTIONS = [row.name for row in run_rows()]


def job_with(**parameters: Any) -> DeclaredJob[Any]:
    """Return a job that adds the values of its parameters, which are numbers, to the cells."""
    names = ", ".join(f"{name}: {type(value).__name__} = {value!r}" for name, value in parameters.items())
    scope: dict[str, Any] = {}
    exec(f"def added(block, *, {names}): return block + {' + '.join(parameters)}", scope)
    return meshrun.map_blocks(scope["added"], halo=0, fuse="off")  # type: ignore[call-overload, no-any-return]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.zeros((4, 6)))
    Path("mine.py").write_text(
        "import meshrun\n"
        "@meshrun.map_blocks(fuse='off')\n"
        "def deep(block, *, depth: int = 1, run_depth: int = 1, grid: int = 1, verify: int = 1,\n"
        "         overlap: bool = True, json: str = '', steps: int = 1, resume: int = 1, ranks: int = 1,\n"
        "         input_shape: int = 1, dtype: str = 'x'):\n"
        "    return block + 1000 * depth + 100 * run_depth + 10 * grid + verify\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", [*OPTIONS, RANKS.name])
def test_a_parameter_may_have_the_name_of_any_option(name: str) -> None:
    job = job_with(**{name: 3})
    record = job.run("in.npy", "out.npy", **{name: 5})
    assert record["parameters"] == {name: 5}
    assert np.load("out.npy").max() == 5
    assert job(np.zeros(3), **{name: 7}).max() == 7
    with pytest.raises(UserError, match=f"Invalid value for 'run_{name}'"):
        job.run("in.npy", "out.npy", **{f"run_{name}": object()})


@pytest.mark.parametrize("name", OPTIONS)
def test_help_shows_both(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = name.replace("_", "-")
    Path("other.py").write_text(
        f"import meshrun\n@meshrun.map_blocks\ndef f(a, *, {name}: float = 3.0): return a\n"
    )
    own, ours = {}, {}
    for one in job_command("other.py:f").params:
        if isinstance(one, click.Option):
            (own if str(one.name).startswith(OWN) else ours)[str(one.name)] = one.opts
    assert own == {OWN + name: [f"--{flag}"]}
    assert f"--run-{flag}" in ours[name]
    assert f"--{flag}" not in ours[name]
    assert main(["run", "other.py:f", "--help-all"]) == 0
    words = capsys.readouterr().out.split()
    assert f"--{flag}" in words
    assert f"--run-{flag}" in words or f"--run-{flag}," in words


def test_a_command_takes_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run mine.py in.npy out.npy --depth 2 --run-depth 3 --grid 4 --verify 5 --no-overlap --dtype y"
    more = "--run-grid 1x1 --run-verify --run-json - --no-run-overlap --run-steps 2 --device cpu"
    assert main([*words.split(), *more.split()]) == 0
    assert np.load("out.npy").max() == 2 * 2345
    said = capsys.readouterr()
    assert '"steps": 2' in said.out.replace("\n", "")
    assert "verified (sample" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--run-run-depth 0", "Invalid value for '--run-run-depth': 0 is not in the range"),
        ("--run-grid 2x2", "--run-grid does not use every rank exactly once"),
        ("--every 2", "--every applies only to runs that take steps. Try: --run-steps N"),
        ("--run-boundary x", "Invalid value for '--boundary'"),
        ("--run-verify some", "--run-verify: got 'some', expected sample or full"),
    ],
)
def test_errors_name_the_option_as_the_command_has_it(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.py", "in.npy", "out.npy", *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_every_job_takes_the_long_name(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a program can continue a run whatever its job's parameters are called."""
    assert main(["run", "laplacian", "in.npy", "out.npy", "--run-depth=2", "--run-resume"]) == 0
    assert main(["run", "laplacian", "in.npy", "--run-depth"]) == 2
    assert main(["run", "laplacian", "--", "--run-depth", "out.npy"]) == 2
    assert "--run-depth" in capsys.readouterr().err.splitlines()[-1]


def test_a_value_that_is_the_name_of_an_option_is_a_value() -> None:
    Path("text.py").write_text(
        "import meshrun\n@meshrun.map_blocks\ndef text(block, *, go: str): return block + len(go)\n"
    )
    assert main(["run", "text.py", "in.npy", "verify.npy", "--go", "go"]) == 0
    assert np.load("verify.npy").max() == 2
    assert main(["run", "text.py", "in.npy", "verify.npy", "--go", "resume"]) == 0
    assert np.load("verify.npy").max() == 6


def test_a_plan_takes_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--run-ranks 2 --ranks 5 --run-grid 2x1 --depth 7"
    assert main(["plan", "mine.py", "in.npy", *words.split(), "--run-json", "-"]) == 0
    assert '"ranks": 2' in capsys.readouterr().out
    record = job_with(ranks=1, depth=1).plan("in.npy", run_ranks=2, ranks=3, run_depth=2, depth=5)
    assert (record["ranks"], record["parameters"]) == (2, {"ranks": 3, "depth": 5})
    with pytest.raises(UserError, match="job added needs run_ranks: ranks is a parameter of its own"):
        job_with(ranks=1).plan("in.npy", ranks=3)
    with pytest.raises(UserError, match="Invalid value for 'run_depth'"):
        job_with(depth=1).plan("in.npy", ranks=2, run_depth=0)
    Path("hosted.py").write_text(
        "import meshrun\n@meshrun.map_blocks\ndef f(a, *, hosts: int = 3, gpu: str = ''): return a\n"
    )
    assert main(["plan", "hosted.py", "in.npy", "--ranks", "2", "--run-hosts", "3"]) == 2
    assert "--run-hosts is more than --ranks" in capsys.readouterr().err
    assert main(["plan", "hosted.py", "in.npy", "--ranks", "2"]) == 0
    assert "use --run-gpu cpu for hosts without GPUs" in capsys.readouterr().out
    for option in plan_rows():
        # A file of its own for each: Python takes one of the same size and second for the same.
        file = Path(f"{option.name}_of_job.py")
        file.write_text(
            f"import meshrun\n@meshrun.map_blocks\ndef f(a, *, {option.name}: float = 3.0): return a\n"
        )
        assert main(["plan", f"{file}:f", "--help"]) == 0
        assert f"--run-{option.name.replace('_', '-')}" in capsys.readouterr().out


def test_steps_on_arrays_take_both() -> None:
    assert job_with(every=1, steps=1).iterate(np.zeros(3), run_steps=2, steps=5, every=7).max() == 24
    assert [one.max() for one in job_with(steps=1).iterate(np.zeros(3), run_steps=2, every=1)] == [1, 2]
    with pytest.raises(UserError, match="job added needs run_steps: steps is a parameter of its own"):
        job_with(steps=1).iterate(np.zeros(3), steps=2)


def test_an_option_is_not_given_twice() -> None:
    with pytest.raises(UserError, match="depth and run_depth are the same option of job added"):
        job_with(gain=1).run("in.npy", "out.npy", depth=2, run_depth=3)
    assert job_with(gain=1).run("in.npy", "out.npy", run_chunk_bytes="1K")["stream"]


def test_a_parameter_has_its_value_even_if_that_is_the_options_default() -> None:
    job = job_with(oversubscribe=True)
    assert job.run("in.npy", "out.npy", oversubscribe=False)["parameters"] == {"oversubscribe": False}
    assert np.load("out.npy").max() == 0


def test_an_error_of_the_job_is_about_its_own_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checked.py").write_text(
        "import meshrun\n"
        "def check(shape, dtype, *, depth):\n"
        "    raise meshrun.UserError('--depth is too small', hint='--depth 5')\n"
        "@meshrun.map_blocks(check=check)\n"
        "def f(block, *, depth: int = 1): return block\n"
    )
    assert main(["run", "checked.py", "in.npy", "out.npy"]) == 2
    assert capsys.readouterr().err == "meshrun: --depth is too small. Try: --depth 5\n"
    assert main(["plan", "checked.py", "in.npy", "--ranks", "2"]) == 2
    assert capsys.readouterr().err == "meshrun: --depth is too small. Try: --depth 5\n"
    job = find("checked.py")
    for call in (
        lambda: job.run("in.npy", "out.npy", device="cpu"),
        lambda: job.run("in.npy", "out.npy", device="cpu", ranks=2),
        lambda: job.plan("in.npy", ranks=2),
        lambda: job(np.zeros(3)),
    ):
        with pytest.raises(UserError) as refused:
            call()
        assert str(refused.value) == "--depth is too small. Try: --depth 5"


def test_errors_of_a_program_name_the_keyword() -> None:
    with pytest.raises(UserError, match=r"run_grid does not use every rank.*Try: run_grid='0x0'"):
        job_with(grid=1).run("in.npy", "out.npy", run_grid="2x2")
    with pytest.raises(UserError, match=r"every.* Try: run_frames"):
        job_with(frames=1).run("in.npy", "out.npy", steps=2, every=1)
    with pytest.raises(UserError, match="no array to plan for: got neither INPUT nor run_input_shape"):
        job_with(input_shape=1).plan(ranks=2)
    with pytest.raises(UserError, match="Try: depth"):
        job_with(gain=1).run("in.npy", "out.npy", dept=2)


def test_help_names_other_options_as_the_command_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("named.py").write_text(
        "import meshrun\n@meshrun.map_blocks\n"
        "def f(a, *, until: int = 1, every: int = 1, boundary: int = 1, resume: int = 1, shape: int = 1,\n"
        "      overwrite_input: int = 1): return a\n"
    )
    assert main(["run", "named.py", "--help-all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "or checks of --run-until.",
        "checked every 10 or --run-every steps",
        "The constant of --run-boundary constant.",
        "continue with --run-resume.",
        "only with --run-overwrite-input.",
    ):
        assert text in said
    assert main(["plan", "named.py", "--help"]) == 0
    assert "Dtype for --input-shape, such as float32." in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "named.py", "--ranks", "2", "--input-shape", "2"]) == 2
    assert "meshrun: --input-shape needs an element type" in capsys.readouterr().err


def test_a_summary_names_the_keyword(capsys: pytest.CaptureFixture[str]) -> None:
    record = job_with(every=1).run("in.npy", "out.npy", steps=2, until=0.0)
    assert "none was checked (run_every=N)" in str(record)
    assert main(["run", "laplacian", "in.npy", "out.npy", "--steps", "2", "--until", "0"]) == 0
    assert "none was checked (--every N)" in capsys.readouterr().err


def test_a_reference_may_name_a_parameter_that_is_called_input_dtype() -> None:
    def expected(block: Any, *, input_dtype: int) -> Any:
        return block + input_dtype

    def added(block: Any, *, input_dtype: int = 1) -> Any:
        return block + input_dtype

    job = meshrun.map_blocks(added, halo=0, reference=expected)  # type: ignore[call-overload]
    assert job.run("in.npy", "out.npy", input_dtype=4, verify=True)["verify"]


def test_the_docstring_names_the_options_that_are_called_otherwise() -> None:
    assert "another name for this job: run_depth, run_ranks" in str(
        inspect.getdoc(job_with(ranks=1, depth=1))
    )
    assert "another name" not in str(inspect.getdoc(job_with(gain=1)))

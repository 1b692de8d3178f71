"""The command as a process: what it imports, what a user's folders can do to it, how it is piped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import meshrun
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import ssh_hosts
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.spec import LaunchSpec

HOME = Path(meshrun.__file__).parent
ROOMS = ("launch", "runner", "jobs")
# The console script that pip writes.
SCRIPT = "import sys\nfrom meshrun.launch.cli.main import main\nsys.exit(main())\n"


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """A working directory with folders called like ours, none of which may be imported."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('the wrong folder was imported')\n")
    return tmp_path


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """meshrun as pip installs it, with our packages on the path as an installation has them: last."""
    path = tmp_path_factory.mktemp("bin") / "meshrun"
    path.write_text(f"import sys\nsys.path.append({str(HOME.parent)!r})\n{SCRIPT}")
    return str(path)


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a file for every module that we may import, and where each leaves a mark if it is run."""
    folder, marks = tmp_path / "planted", tmp_path / "marks"
    for made in (folder, marks):
        made.mkdir()
    for name in {*sys.stdlib_module_names, "mpi4py", "numpy", "click", "rich", "runner", "jobs", "launch"}:
        (folder / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w').close()\nraise ImportError\n")
    np.save(folder / "in.npy", np.ones((64, 64), np.float32))
    return folder, marks


SAME = """\
from meshrun import map_blocks

@map_blocks
def same(block):
    return block
"""


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "slurm", "--print", "-j", "1x2", "--", "selftest"],
        ["-n", "2", "run", "job.py:same", "in.npy", "out.npy", "--device", "cpu", "--verify"],
        ["run", "job.py:same", "in.npy", "out.npy", "--device", "cpu", "--chunk-bytes", "4096"],
    ],
)
def test_no_file_of_the_working_directory_is_run(
    planted: tuple[Path, Path], script: str, words: list[str]
) -> None:
    if "-n" in words and mpi_library.loaded() is None:
        pytest.skip("no MPI")
    folder, marks = planted
    (folder / "job.py").write_text(SAME)
    run(script, *words, cwd=folder)
    assert not list(marks.iterdir())
    assert "run" not in words or (folder / "out.npy").exists()


def test_no_file_of_the_working_directory_is_run_to_see_which_mpi_is_there(
    planted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marks = planted
    before = mpi_library.loaded()
    monkeypatch.chdir(folder)
    assert mpi_library.loaded() == before
    (answer,) = ssh_hosts.probe_hosts(LaunchSpec(("selftest",), 1, 1, ("localhost",)), sys.executable)
    assert answer.mpi == before
    assert not list(marks.iterdir())


def test_packages_that_pythonpath_names_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "mpi4py"  # where a site's modules have it
    site.mkdir()
    (site / "__init__.py").write_text("class rc: initialize = True\n")
    (site / "MPI.py").write_text("def get_vendor(): return 'Site MPI', (7, 0, 1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert mpi_library.loaded() == mpi_library.Library("Site MPI", 7)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], []])
def test_help_imports_nothing_that_costs(tmp_path: Path, words: list[str]) -> None:
    code = (
        "import json, sys\n"
        f"sys.path.append({str(HOME.parent)!r})\n"
        "from meshrun.launch.cli.main import main\n"
        f"status = main({words!r})\n"
        "print(json.dumps([status, sorted(sys.modules)]))\n"
    )
    ended = run("-c", code, cwd=tmp_path)
    status, modules = json.loads(ended.stdout.splitlines()[-1])
    assert status == 0
    costly = {"numpy", "cupy", "mpi4py", "PIL", "rich", "ctypes", "jinja2", "prometheus_client"}
    if "run" not in words:
        costly |= {"meshrun.runner", "meshrun.jobs"}
    assert not costly & set(modules)


def test_the_command_is_not_misled_by_the_working_directory(shadows: Path, script: str) -> None:
    ended = run(script, "run", "--help", cwd=shadows)
    assert ended.returncode == 0, ended.stderr


def test_ranks_are_not_misled_by_the_working_directory(shadows: Path) -> None:
    ended = run(*PROGRAM[1:], "run", "--help", cwd=shadows)
    assert ended.returncode == 0, ended.stderr


def test_ranks_are_not_misled_by_what_lies_beside_the_door(tmp_path: Path) -> None:
    ended = run("-P" if sys.version_info >= (3, 11) else "-s", *PROGRAM[1:], "run", "--help", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    code = f"import runpy, sys; sys.path.insert(0, {str(HOME)!r}); sys.argv = ['x', '--help']\n"
    ended = run("-c", code + f"runpy.run_path({PROGRAM[1]!r}, run_name='__main__')", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_python_m_meshrun_ignores_the_other_folders(shadows: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.path[:] = ['', *sys.path[1:], {str(HOME.parent)!r}]\n"
        "sys.argv = ['x', 'run', '--help']\n"
        "runpy.run_module('meshrun', run_name='__main__', alter_sys=True)\n"
    )
    ended = run("-c", code, cwd=shadows)
    assert ended.returncode == 0, ended.stderr


def test_folders_of_these_names_on_pythonpath_hide_nothing(shadows: Path, script: str) -> None:
    ended = run(script, "jobs", cwd=shadows, PYTHONPATH=".")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "laplacian" in ended.stdout


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, script: str) -> None:
    # The reader's end is closed before the command writes its first word.
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        ended = subprocess.run(
            [sys.executable, script, "run", "--help"],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.stderr == ""


def test_ranks_take_names_that_are_no_utf8(tmp_path: Path, script: str) -> None:
    place = tmp_path / "of\udcff"
    place.mkdir()
    np.save(place / "in\udcff.npy", np.arange(4096.0).reshape(512, 8))
    ranks = [script, "-n", "2", "run", "elementwise"]
    more = ["--expression", "x+1", "--device", "cpu", "--chunk-bytes", "8K", "--timeline", "t\udcff.html"]
    done = run(*ranks, "in\udcff.npy", "out\udcff.npy", *more, "--json", "r\udcff.json", cwd=place)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(place / "out\udcff.npy"), np.arange(4096.0).reshape(512, 8) + 1)
    done = run(*ranks, "none\udcff.npy", "out.npy", "--expression", "x", cwd=place)
    assert done.returncode == 2
    few_cores = re.compile("meshrun: warning: .* cores?[:,]")
    (told,) = (line for line in done.stderr.splitlines() if not few_cores.match(line))
    assert told == "meshrun: none\\xff.npy does not exist"
    names = {"in\udcff.npy", "out\udcff.npy", "t\udcff.html", "r\udcff.json"}
    assert {path.name for path in place.iterdir()} == names


@pytest.mark.parametrize("ranks", [[], ["-n", "2"]])
def test_a_failure_that_cannot_be_told_leaves_no_files(tmp_path: Path, script: str, ranks: list[str]) -> None:
    """As with a log on the disk that the output has filled."""
    (tmp_path / "late.py").write_text(
        "import meshrun\n\n@meshrun.map_blocks(out=lambda shape, dtype: (shape, dtype))\n"
        "def late(block):\n    raise ValueError\n"
    )
    np.save(tmp_path / "in.npy", np.arange(12.0).reshape(4, 3))
    words = [*ranks, "run", "late.py:late", "in.npy", "out.npy", "--device", "cpu"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, script, *words], cwd=tmp_path, stdout=full, stderr=full, timeout=60, check=False
        )
    assert done.returncode == 1
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"__pycache__"} == {"late.py", "in.npy"}


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(tmp_path: Path, script: str, closed: str) -> None:
    """Nor does an output file get their number, and what is printed."""
    np.save(tmp_path / "in.npy", np.arange(12.0).reshape(4, 3))
    words = f"run elementwise in.npy out.npy --device cpu --expression x+1 {closed}"
    done = run(
        "-c",
        f"import os; os.execv('/bin/sh', ['sh', '-c', '{sys.executable} {script} {words}'])",
        cwd=tmp_path,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.arange(12.0).reshape(4, 3) + 1)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lock"] == []


@pytest.mark.parametrize("ranks", [[], ["-n", "2"]])
def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_all(
    tmp_path: Path, script: str, ranks: list[str]
) -> None:
    (tmp_path / "wide.py").write_text(
        "import meshrun\n\n@meshrun.job\ndef wide(world):\n"
        "    if world.rank == 0:\n        print('x' * 1_000_000, flush=True)\n    return {}\n"
    )
    np.save(tmp_path / "in.npy", np.arange(12.0).reshape(4, 3))
    words = [sys.executable, script, *ranks, "run", "wide.py:wide", "in.npy", "--device", "cpu"]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(words, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        with open(reading, "rb") as pipe:
            first = pipe.read(1)
            time.sleep(0.5)  # the pipe is full meanwhile
            assert (first + pipe.read()).count(b"x") == 1_000_000
        assert process.wait(60) == 0, process.stderr and process.stderr.read()


BENCHES = [
    "bench all_reduce -b 1K -e 1K -n 1 --device cpu",
    "bench copy -s 1M -n 1 --device cpu",
    "bench memory transfer -e 4K -n 1 --device cpu",
]


@pytest.mark.parametrize(
    "words", ["run statistics in.npy --device cpu", "doctor", "run statistics in.npy --json -", *BENCHES]
)
def test_a_full_disk_under_standard_output_is_a_sentence(tmp_path: Path, script: str, words: str) -> None:
    np.save(tmp_path / "in.npy", np.arange(12.0).reshape(4, 3))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, script, *words.split()],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "meshrun: cannot write to the standard output: No space left on device"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", BENCHES)
def test_a_measurement_that_nobody_reads_ends_with_a_sentence(
    tmp_path: Path, script: str, words: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, script, *words.split()],
        cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (
        1,
        "meshrun: cannot write to the standard output: Broken pipe\n",
    )


@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_while_meshrun_is_imported_has_no_traceback(tmp_path: Path, ignored: bool) -> None:
    (tmp_path / "click.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nsys.exit('went on')\n"
    )
    done = subprocess.run(
        PROGRAM,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == ((1, "went on\n") if ignored else (-signal.SIGINT, ""))

"""The rules in conftest.py: what a hang does, and which tests may run a second time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = ("-p", "pytest_timeout", "-p", "pytest_rerunfailures", "-p", "xdist.plugin")


def run_pytest(folder: Path, tests: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What becomes of tests under this project's conftest.py and settings."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_sample.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGINS, "test_sample.py", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second to import
        capture_output=True,
        text=True,
        check=False,
    )


HANGS = """
import threading
import pytest

def test_hang():
    threading.Event().wait()

@pytest.mark.timeout(60)  # of a busy machine
def test_after():
    pass
"""


def test_a_hanging_test_fails_with_its_stack_and_the_next_one_runs(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGS, "--timeout=1")
    assert done.returncode == 1
    assert "threading.Event().wait()" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


FAILS_ONCE = """
import pytest

calls = []

@pytest.mark.parametrize("name", [{names}])
@pytest.mark.rerun("the first call is unlucky")
def test_unlucky(name):
    calls.append(name)
    assert calls.count(name) == 2
"""


def test_a_test_with_a_reason_runs_a_second_time_and_is_named(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, FAILS_ONCE.format(names="'one'"))
    assert done.returncode == 0, done.stdout
    assert "1 ran a second time" in done.stdout
    assert "\ntest_sample.py::test_unlucky[one]\n" in done.stdout


def test_three_such_tests_are_accepted(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, FAILS_ONCE.format(names="1, 2, 3")).returncode == 0


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "two"])
def test_more_than_three_such_tests_fail_the_run(tmp_path: Path, processes: tuple[str, ...]) -> None:
    four = run_pytest(tmp_path, FAILS_ONCE.format(names="1, 2, 3, 4"), *processes)
    assert four.returncode == 1
    assert "4 ran a second time; more than 3 fail the run" in four.stdout


def test_without_reruns_it_fails(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, FAILS_ONCE.format(names="'one'"), "--no-reruns")
    assert done.returncode == 1
    assert "second time" not in done.stdout


def test_a_test_without_the_mark_runs_once(tmp_path: Path) -> None:
    unmarked = FAILS_ONCE.format(names="'one'").replace("@pytest.mark.rerun", "# ")
    assert run_pytest(tmp_path, unmarked).returncode == 1


def test_a_rerun_needs_a_reason(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, FAILS_ONCE.format(names="'one'").replace("the first call is unlucky", " "))
    assert "a rerun needs a reason" in done.stdout + done.stderr
    assert done.returncode != 0

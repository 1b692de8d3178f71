"""The guard in conftest.py against tests that hang."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def run_pytest(folder: Path, test: str, seconds: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder)
    (folder / "test_sample.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)],
        env={"MESHRUN_TEST_SECONDS": seconds},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_hanging_test_ends_the_process_and_shows_where(tmp_path: Path) -> None:
    test = "import threading\n\ndef test_hang():\n    threading.Event().wait()\n"
    done = run_pytest(tmp_path, test, seconds="1")
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in test_hang" in done.stderr
    assert "1 passed" not in done.stdout


def test_the_guard_is_per_test(tmp_path: Path) -> None:
    parametrized = "@pytest.mark.parametrize('n', range(6))\ndef test_short(n):\n    time.sleep(0.5)\n"
    test = f"import pytest, time\n\n{parametrized}"
    done = run_pytest(tmp_path, test, seconds="2.9")
    assert done.returncode == 0, done.stderr
    assert "6 passed" in done.stdout

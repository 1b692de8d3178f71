"""Jobs in other processes: the ranks that `run(..., ranks=2)` starts, pools of processes, pickles."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshrun
from meshrun.runner.job.discover import find
from meshrun.runner.job.pickling import dumps

HELPER = """
factor = 2.0

def scaled(values):
    return factor * values
"""
JOBS = """
import meshrun
from {helpers} import scaled

step = 1.0

def total(block):
    return step + scaled(block[2:] + block[:-2])

@meshrun.map_blocks(halo=1, boundary="constant")
def sides(block):
    return total(block)

def plain(block):
    return block + step

renamed = meshrun.map_blocks(plain, name="plus")
"""
RUN = """
import numpy as np
from {jobs} import sides
from {jobs} import renamed
import {jobs} as module

if __name__ == "__main__":
    a, result = np.ones(100), np.zeros(100)
    sides.run(a, result, ranks=2, device="cpu")
    np.testing.assert_array_equal(result, sides(a))
    assert result[0] == 3 and result[1] == 5
    module.step = 7.0
    sides.run(a, result, ranks=2, device="cpu")
    assert result[1] == 11, "what the helper reads is as it is now"
    renamed.run(a, result, ranks=2, device="cpu")
    assert result[1] == 8
"""


def python(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_ranks_run_a_job_that_calls_a_function_of_its_module(tmp_path: Path) -> None:
    """The modules are beside a script that is started elsewhere; one has the name of one of ours."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "jobs.py").write_text(HELPER)
    (tmp_path / "code" / "myjobs.py").write_text(JOBS.format(helpers="jobs"))
    (tmp_path / "code" / "main.py").write_text(RUN.format(jobs="myjobs"))
    python(tmp_path, "code/main.py")


def test_ranks_run_a_job_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "inner" / "__init__.py").touch()
    (tmp_path / "pack" / "helpers.py").write_text(HELPER)
    (tmp_path / "pack" / "inner" / "myjobs.py").write_text(JOBS.format(helpers="..helpers"))
    program = RUN.format(jobs=".inner.myjobs").replace("import .inner.myjobs", "from .inner import myjobs")
    (tmp_path / "pack" / "__main__.py").write_text(program)
    python(tmp_path, "-m", "pack")


LARGE = """
import functools
import numpy as np

unused = np.ones(20 << 20, np.uint8)
table = np.ones(1 << 20, np.uint8)
step = 1.0

def inner(values):
    return values + step + table[0]

def helper(values):
    return inner(values)

@functools.lru_cache
def cached(count):
    return step * count
"""
USERS = {
    "a function": "helper(block)",
    "a module": "mylarge.helper(block)",
    "a module of a module": "mymiddle.mylarge.helper(block)",
    "a method": "mymiddle.Solver().solve(block)",
    "a name in a variable": "getattr(mylarge, ''.join(['hel', 'per']))(block)",
    "what keeps its results": "helper(block) + mylarge.cached(3) - 3 * mylarge.step",
}
MIDDLE = """
import mylarge

class Solver:
    def solve(self, block):
        return mylarge.helper(block)
"""
USING = """
import numpy as np
import meshrun, mylarge, mymiddle
from mylarge import helper

@meshrun.map_blocks
def job(block):
    return {expression}

if __name__ == "__main__":
    a, result = np.zeros(4), np.zeros(4)
    mylarge.step, mylarge.table = 7.0, 2 * mylarge.table
    job.run(a, result, ranks=2, device="cpu")
    assert result.tolist() == [9.0] * 4, result
"""


def write_using(folder: Path, user: str) -> None:
    (folder / "mylarge.py").write_text(LARGE)
    (folder / "mymiddle.py").write_text(MIDDLE)
    (folder / "myusing.py").write_text(USING.format(expression=USERS[user]))


@pytest.mark.parametrize("user", USERS)
def test_globals_that_a_job_does_not_use_are_not_sent(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_using(tmp_path, user)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("mylarge", "mymiddle", "myusing")
    try:
        modules = [importlib.import_module(name) for name in names]
        sent = len(dumps(modules[-1].job, *modules))
    finally:
        for name in names:
            sys.modules.pop(name, None)
    assert sent > 1 << 20, "what a helper uses is sent"
    # What is named only at run time, or keeps its results in the ranks, may use all globals.
    may_use_all = user in ("a name in a variable", "what keeps its results")
    assert (sent > 20 << 20) == may_use_all


@pytest.mark.parametrize("user", ["a method", "what keeps its results"])
def test_ranks_have_the_globals_that_a_job_uses_as_they_are_now(user: str, tmp_path: Path) -> None:
    write_using(tmp_path, user)
    python(tmp_path, "myusing.py")


def test_what_cannot_be_sent_is_imported_by_the_ranks(tmp_path: Path) -> None:
    text = JOBS.format(helpers="myhelpers").replace("return step", "with lock: return step")
    (tmp_path / "myhelpers.py").write_text(HELPER)
    (tmp_path / "myjobs.py").write_text(f"import threading\nlock = threading.Lock()\n{text}")
    (tmp_path / "main.py").write_text(
        "import io, logging\nimport numpy as np\nfrom myjobs import sides\n"
        "a, result = np.ones(9), np.zeros(9)\n"
        "logging.basicConfig(stream=(said := io.StringIO()))\n"
        "sides.run(a, result, ranks=2, device='cpu')\nassert result[1] == 5\n"
        "assert 'the ranks import myjobs' in said.getvalue()\n"
    )
    python(tmp_path, "main.py")


def test_ranks_run_a_job_of_a_file_that_was_loaded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "myhelpers.py").write_text(HELPER)
    (tmp_path / "my jobs.py").write_text(JOBS.format(helpers="myhelpers"))
    (tmp_path / "main.py").write_text(
        "import numpy as np\nfrom meshrun.runner.job.discover import find\n"
        "a, result = np.ones(9), np.zeros(9)\n"
        "find('my jobs.py:sides').run(a, result, ranks=2, device='cpu')\nassert result[1] == 5\n"
    )
    python(tmp_path, "main.py")


POOL = """
import multiprocessing, pickle, sys
import cloudpickle
import numpy as np
import meshrun
import myjobs

offset = 3.0

@meshrun.map_blocks
def shifted(block):
    return block + offset + myjobs.step

if __name__ == "__main__":
    arrays = [np.full(4, float(n)) for n in range(3)]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            for job in (myjobs.sides, myjobs.renamed, shifted):
                results = pool.map(job, arrays)
                np.testing.assert_array_equal(results, [job(one) for one in arrays])
    for library in (pickle, cloudpickle):
        with open(f"{library.__name__}.bytes", "wb") as file:
            file.write(library.dumps([shifted, myjobs.sides]))
"""


def test_jobs_go_to_pools_of_processes_and_to_programs_of_other_libraries(tmp_path: Path) -> None:
    (tmp_path / "myhelpers.py").write_text(HELPER)
    (tmp_path / "myjobs.py").write_text(JOBS.format(helpers="myhelpers"))
    (tmp_path / "main.py").write_text(POOL)
    python(tmp_path, "main.py")
    reader = (
        "import pickle, sys, numpy as np\n"
        "for name in ('pickle', 'cloudpickle'):\n"
        "    shifted, sides = pickle.load(open(f'{name}.bytes', 'rb'))\n"
        "    assert (shifted.name, sides.name) == ('shifted', 'sides')\n"
        "    assert shifted(np.zeros(3)).tolist() == [4.0] * 3\n"
        "    import myjobs\n"
        "    assert sides is myjobs.sides\n"
    )
    python(tmp_path, "-c", reader)


@meshrun.map_blocks(halo=1, name="other name")
def smear(block: Any, *, weight: float = 0.5) -> Any:
    """Mix each cell with its neighbour."""
    return (1 - weight) * block[1:-1] + weight * block[2:]


@pytest.mark.parametrize("library", [pickle, cloudpickle])
def test_a_job_of_a_module_is_that_job_again(library: Any) -> None:
    assert pickle.loads(library.dumps(smear)) is smear
    assert pickle.loads(library.dumps(find("laplacian"))) is find("laplacian")
    assert pickle.loads(library.dumps({"a": [smear]}))["a"][0] is smear
    assert copy.copy(smear) is copy.deepcopy(smear) is smear


def made(gain: float) -> Any:
    def gained(block: Any) -> Any:
        return gain * block if block.ndim else job(block)  # it names itself

    job = meshrun.map_blocks(gained)
    return job


@pytest.mark.parametrize("write", [pickle.dumps, cloudpickle.dumps, dumps])
def test_a_job_that_no_module_has_travels_with_its_values(write: Any) -> None:
    job = made(3.0)
    again = pickle.loads(write(job))
    assert again is not job
    assert repr(again) == repr(job)
    assert again.__doc__ == job.__doc__
    np.testing.assert_array_equal(again(np.arange(4.0)), 3 * np.arange(4.0))
    np.testing.assert_array_equal(again(np.arange(4.0)), 3 * np.arange(4.0))
    assert type(again) is type(job)


def test_a_job_of_a_file_that_was_loaded_by_its_path_travels_by_value(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "import meshrun\ndef two(): return 2\n@meshrun.map_blocks\ndef twice(block): return two() * block\n"
    )
    data = pickle.dumps(find(f"{tmp_path}/twice.py"))
    program = f"import pickle, numpy; print(pickle.loads({data!r})(numpy.ones(1)))"
    python(tmp_path.parent, "-c", program)
    assert not cloudpickle.list_registry_pickle_by_value(), "the program's own list is as it was"


STATE = """
import threading
import numpy as np
import settings, helpers, myjobs

if __name__ == "__main__":
    a, alone, together = np.ones(9), np.zeros(9), np.zeros(9)
    settings.offset, settings.table["gain"], helpers.power = 7.0, 5.0, 3.0
    settings.Kind.factor = 11.0
    for job in (myjobs.by_module, myjobs.by_name):
        job.run(a, alone, ranks=1, device="cpu")
        job.run(a, together, ranks=2, device="cpu", verify="full")
        assert alone[0] == 7 + 5 * 3 * 11, alone
        np.testing.assert_array_equal(alone, together)
"""


def test_ranks_have_the_values_of_all_modules_of_the_user(tmp_path: Path) -> None:
    """Not those that the modules have when they are imported: the result would depend on the ranks."""
    (tmp_path / "settings.py").write_text(
        "import helpers\noffset = 0.0\ntable = {'gain': 1.0}\nclass Kind:\n    factor = 1.0\n"
    )
    (tmp_path / "helpers.py").write_text(
        "import settings\npower = 1.0\n"
        "def scaled(block): return block * settings.table['gain'] * power * settings.Kind.factor\n"
    )
    (tmp_path / "myjobs.py").write_text(
        "import meshrun, settings, helpers\nfrom helpers import scaled\n"
        "@meshrun.map_blocks\ndef by_module(block): return settings.offset + helpers.scaled(block)\n"
        "@meshrun.map_blocks\ndef by_name(block): return settings.offset + scaled(block)\n"
    )
    (tmp_path / "main.py").write_text(STATE)
    python(tmp_path, "main.py")


def test_a_warning_tells_of_values_of_another_module_that_cannot_be_sent(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("import threading\nlock, gain = threading.Lock(), 2.0\n")
    (tmp_path / "myjobs.py").write_text(
        "import meshrun, settings\n@meshrun.map_blocks\ndef scaled(block):\n"
        "    with settings.lock: return settings.gain * block\n"
    )
    (tmp_path / "main.py").write_text(
        "import io, logging\nimport numpy as np\nfrom myjobs import scaled\n"
        "a, result = np.ones(9), np.zeros(9)\n"
        "logging.basicConfig(stream=(said := io.StringIO()))\n"
        "scaled.run(a, result, ranks=2, device='cpu')\nassert result[1] == 2\n"
        "assert 'the ranks import the modules that myjobs uses' in said.getvalue()\n"
    )
    python(tmp_path, "main.py")

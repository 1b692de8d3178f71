"""An installed meshrun does its work: python tests/smoke.py [RANKS], by the Python of its environment.

It needs what the package depends on and nothing else; with more than one rank, an MPI too. It imports nothing
of the checkout.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

JOB = """
import meshrun

@meshrun.map_blocks(halo=1, boundary="wrap")
def shifted(block):
    return block[2:, 1:-1]
"""


def meshrun(*words: str, folder: str) -> str:
    program = str(Path(sys.executable).with_name("meshrun"))
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"meshrun {' '.join(words)}: status {done.returncode}\n{done.stderr}"
    return done.stdout


# Uses the package beside a user's own folder `jobs`, whose name is that of one of the package's folders.
SCRIPT = """
import importlib.util
import numpy as np
import jobs, meshrun
assert jobs.mine == 3, jobs
assert not [name for name in ("runner", "launch") if importlib.util.find_spec(name)]
with meshrun.open_world("cpu") as world:
    product = meshrun.matmul(np.eye(4), np.full((4, 4), 2.0), world=world)
    np.testing.assert_array_equal(product, np.full((4, 4), 2.0))
"""


def check_names(folder: str) -> None:
    """Check that site-packages gets `meshrun` alone, and run SCRIPT beside a folder `jobs`."""
    installed = importlib.metadata.files("meshrun") or []
    top = {path.parts[0] for path in installed if not path.parts[0].startswith((".", "meshrun-"))}
    assert top == {"meshrun"}, f"site-packages has {sorted(top)}"
    for name in ("runner", "jobs", "launch"):
        assert importlib.util.find_spec(name) is None, f"`import {name}` finds {name}"
    Path(folder, "jobs").mkdir()
    Path(folder, "jobs", "__init__.py").write_text("mine = 3\n")
    Path(folder, "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "script.py"], cwd=folder, check=True)


def main(ranks: str) -> None:
    array = np.random.default_rng(7).integers(0, 255, (31, 17), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "in.npy"), array)
        Path(folder, "job.py").write_text(JOB)
        check_names(folder)
        version = meshrun("--version", folder=folder).strip()
        listed = meshrun("jobs", folder=folder)
        assert "laplacian" in listed, listed
        pages = meshrun("help", folder=folder)
        assert "streaming" in pages, "the pages of the documentation are not in the package"
        meshrun("-n", ranks, "run", "job.py", "in.npy", "out.npy", "--verify", "full", folder=folder)
        np.testing.assert_array_equal(np.load(Path(folder, "out.npy")), np.roll(array, -1, axis=0))
        meshrun("validate", "--simulate", "hosts=2,gpus=4", "--html", "page.html", folder=folder)
        assert "<html" in Path(folder, "page.html").read_text(), "the page's template is not in the package"
        meshrun("bench", "all_reduce", "-b", "1K", "-e", "1K", "--device", "cpu", folder=folder)
    print(f"{version}, Python {sys.version.split()[0]}: {ranks} ranks, jobs, page and bench work")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["1"])

"""README's first command as a newcomer runs it: python tests/first_command.py

In a copy of what git knows of the checkout, with neither its environments nor this process's, the command is
run by a shell word for word. The picture that it leaves is compared with the same filter by Pillow.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

ROOT = Path(__file__).parents[1]
# The eight neighbours minus eight times the centre, of each channel; below 0 is 0, above 255 is 255.
LAPLACIAN = ImageFilter.Kernel((3, 3), (1, 1, 1, 1, -8, 1, 1, 1, 1), scale=1)
FOREIGN = ("MPI", "NOX", "OMPI_", "PMIX_", "PMI_", "PRTE_", "PYTEST_", "PYTHON", "SLURM_", "VIRTUAL_ENV")


def first_command() -> str:
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]


def copy_tracked(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not one that was removed since
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
            target.chmod((ROOT / name).stat().st_mode)


def environment() -> dict[str, str]:
    """This process's without what an environment of Python's, a launcher or nox set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = [place for place in os.environ["PATH"].split(":") if not Path(place, "../pyvenv.cfg").exists()]
    return {**kept, "PATH": ":".join(path)}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name, "meshrun")
        copy_tracked(clone)
        command = first_command()
        sys.stdout.write(command)
        sys.stdout.flush()
        subprocess.run(["sh", "-ec", command], cwd=clone, env=environment(), check=True)
        with Image.open(clone / "edges.png") as picture:
            found = np.asarray(picture)
        with Image.open(clone / "examples/rocket.jpg") as picture:
            expected = np.asarray(picture.filter(LAPLACIAN))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (found.shape, found.dtype)
    inner = np.s_[1:-1, 1:-1]  # Pillow leaves the border as it is
    wrong = int((found[inner] != expected[inner]).sum())
    assert not wrong, f"{wrong} of {found[inner].size} values of edges.png are not the Laplacian filter's"
    assert expected[inner].any()
    print(f"edges.png: {found.shape[1]} x {found.shape[0]}, as Pillow filters it")


if __name__ == "__main__":
    main()

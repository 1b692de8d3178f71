"""Check what docs/coming-from says of Dask and JAX: nox -s peers, or python benchmarks/peers/pages.py

    python benchmarks/peers/pages.py [--json FILE]

The peer's program of a page (its first block of `py`) and meshrun's run beside each other, by the commands of
the page, and their results are compared. What the tables say of the peer is tried: a claim is a sentence, and
whether it holds. Prints all, and ends with 1 if one does not hold. Needs the packages of requirements.txt.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import meshrun

DOCS = Path(__file__).parents[2] / "docs" / "coming-from"
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
os.environ.update(DEVICES)
# Boundaries that the tables call the same: Dask's, meshrun's, and the constant.
BOUNDARIES = (
    ("nearest", "nearest", 0),
    ("periodic", "wrap", 0),
    ("reflect", "reflect", 0),
    (3, "constant", 3),
)


@dataclass(frozen=True)
class Claim:
    """A sentence of a page, and whether it holds. seen: what was found."""

    page: str
    claim: str
    holds: bool
    seen: str


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run_page(page: str, folder: Path) -> None:
    """Run the programs of a page: by its commands, and then the peer's."""
    for code in blocks(page, "python"):
        (folder / code.partition("\n")[0].removeprefix("# ")).write_text(code)
    (folder / "peer.py").write_text(blocks(page, "py")[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    words = [line.removeprefix("$ ").split() for line in lines if line.startswith("$ ")]
    for command in [*words, ["python3", "peer.py"]]:
        subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True)


def of_dask(folder: Path) -> Iterator[Claim]:
    import dask
    import dask.array as da

    page = "dask.md"
    run_page(page, folder)
    parts = sorted((folder / "out").glob("*.npy"), key=lambda path: int(path.stem))
    theirs, ours = np.concatenate([np.load(path) for path in parts]), np.load(folder / "out.npy")
    same = theirs.dtype == ours.dtype and bool((theirs == ours).all())
    yield Claim(
        page, "both compute the same array, bit for bit", same, f"{len(parts)} chunks of {ours.dtype}"
    )

    array = np.random.default_rng(5).random((12, 9))
    for theirs_name, ours_name, constant in BOUNDARIES:
        padded = da.overlap.overlap(da.from_array(array, chunks=(12, 9)), {0: 2, 1: 2}, theirs_name)
        found = np.asarray(padded)[2:-2, 2:-2], _corners(np.asarray(padded))
        job = meshrun.map_blocks(halo=2, boundary=ours_name, cval=constant)(_corners)
        holds = bool((found[0] == array).all()) and np.array_equal(found[1], job(array))
        yield Claim(page, f"boundary {theirs_name} is {ours_name}", holds, "halo 2, both axes")
    size = str(dask.config.get("array.chunk-size"))
    yield Claim(page, "auto chunks have up to array.chunk-size, 128 MiB", size == "128MiB", size)
    signature = inspect.signature(da.reduction)
    wanted = {"chunk", "combine", "aggregate"} <= {*signature.parameters}
    yield Claim(page, "da.reduction(chunk, combine, aggregate)", wanted, str(signature))


def _corners(a: np.ndarray) -> np.ndarray:
    """Different weights of cells at the edges of a halo of 2, so that no two boundaries look the same."""
    return a[:-4, :-4] + 10 * a[4:, 1:-3] + 100 * a[1:-3, 4:] + 1000 * a[3:-1, :-4]


def of_jax(folder: Path) -> Iterator[Claim]:
    import jax
    from jax.sharding import PartitionSpec

    page = "jax.md"
    run_page(page, folder)
    theirs, ours = np.load(folder / "jax.npy"), np.load(folder / "out.npy")
    most = float(abs(theirs - ours).max())
    same = theirs.dtype == ours.dtype and most <= 1e-5
    yield Claim(page, "both write the same array, to rounding", same, f"largest difference {most:.1e}")
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("rows",)), PartitionSpec("rows"))
    for rows in (6, 7):
        refusal = _refusal(lambda rows=rows: jax.device_put(np.zeros((rows, 3), "float32"), sharding))
        sentence = f"{rows} rows on 2 devices are {'refused' if rows % 2 else 'taken'}"
        yield Claim(page, sentence, bool(refusal) == bool(rows % 2), refusal)


def _refusal(work: Callable[[], object]) -> str:
    try:
        work()
    except ValueError as reason:
        return str(reason).splitlines()[0]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Claim] = []
    for of_peer in (of_dask, of_jax):
        with tempfile.TemporaryDirectory() as name:
            found += of_peer(Path(name))
    for one in found:
        print(f"{'holds' if one.holds else 'FALSE':6} {one.page}: {one.claim} ({one.seen})")
    if options.json:
        record = {
            "benchmark": "coming_from",
            "python": sys.version.split()[0],
            "versions": {
                name: importlib.metadata.version(name) for name in ("meshrun", "dask", "jax", "numpy")
            },
            "claims": [asdict(one) for one in found],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(one.holds for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

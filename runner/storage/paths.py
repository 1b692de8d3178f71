"""What a path says: the file, the array in it, the format, and where it is until it is complete."""

from __future__ import annotations

import re
from pathlib import Path

from runner.errors import UserError

BESIDE = len(".." + 12 * "x" + ".partial")  # bytes that a name beside an output may have more than its own
KEPT = "stream"  # in the name of what an interrupted run leaves, for a later one to go on with
CONTAINER = re.compile(r"(.+?\.(?:h5|hdf5|zarr)):(.*)", re.IGNORECASE | re.DOTALL)


def named(what: str, name: str | Path) -> Path:
    """The path of that name; UserError where there is none, as an unset variable of a shell leaves it.

    what: as the sentence calls it, such as "OUTPUT".
    """
    if not str(name) or "\0" in str(name):
        raise UserError(f"{what} has no name", got=repr(str(name)), expected="a file or folder")
    return Path(name)


def split(path: Path) -> tuple[Path, str | None]:
    """The file of `file.h5:/group/name` and what is named in it; None where nothing is."""
    found = CONTAINER.fullmatch(str(path))
    if found is None:
        return path, None
    parts = [part for part in found[2].split("/") if part not in ("", ".")]
    return Path(found[1]), "/".join(parts) or None


def partial_path(path: Path, run_id: str) -> Path:
    """Where the file is until it is complete: beside its final name, so that the rename is atomic."""
    file, _ = split(path)
    return file.with_name(f".{file.name}.{run_id}.partial")


def job_paths(path: Path, run_id: str) -> tuple[Path, Path]:
    """Return the path of a job's own output until it is complete, with its suffix, and the path that the job
    gets: the same one, with the array's name if one was given."""
    file, _ = split(path)
    partial = file.with_name(f".{file.stem}.{run_id}.partial{file.suffix}")
    return partial, Path(f"{partial}{str(path)[len(str(file)) :]}")


def is_kept(partial: Path) -> bool:
    """Whether a later run can go on with it, or with the folder of images that it is in."""
    return any(part.endswith(f".{KEPT}.partial") for part in partial.parts)


def suffix(path: Path) -> str:
    """What the format is known by, also of a file that is not complete: .NAME.SUFFIX.NONCE.partial."""
    name = Path(path.name)
    if name.suffix == ".partial":
        name = name.with_suffix("").with_suffix("")
    return name.suffix.lower()

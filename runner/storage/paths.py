"""Parse paths: the file, the array in it, its format, and the temporary name of an unfinished file."""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from pathlib import Path

from meshrun.runner.errors import UserError

BESIDE = len(".." + 12 * "x" + ".partial")  # bytes by which a temporary name is longer than the output's
RUN = "[0-9a-f]{12}"  # a run's id
KEPT = "stream"  # in place of the run's id in the temporary name of an output that can be resumed
MOST_KEPT = 1024  # paths that are parsed; a run asks for the same ones many times
CONTAINERS = (".zarr", ".h5", ".hdf5")
NODES = (
    "zarr.json",
    ".zarray",
    ".zgroup",
)  # each array and group of a Zarr store has one
CONTAINER = re.compile(r"(.+?\.(?:h5|hdf5|zarr)):(.*)", re.IGNORECASE | re.DOTALL)


def named(what: str, name: str | Path) -> Path:
    """Return the path of that name; UserError if it is empty, for example an unset variable of a shell, leads
    through a circle of symbolic links, or into a container as if that were a folder.

    what: the path's name in the error, such as "OUTPUT".
    """
    if not str(name) or "\0" in str(name):
        raise UserError(f"{what} has no name", got=repr(str(name)), expected="a file or folder")
    path = Path(name)
    try:
        os.stat(split(path)[0])
    except OSError as reason:
        if reason.errno == errno.ELOOP:
            raise UserError(f"{what} cannot be used", got=f"{path}: {reason.strerror}") from reason
    _check_outside_containers(what, path)
    return path


def _check_outside_containers(what: str, path: Path) -> None:
    """Refuse `store.zarr/group/array` and `file.h5/group/array`, which are named with a colon."""
    file, _ = split(path)
    if suffix(file) in CONTAINERS:
        return
    for parent in file.parents:
        if suffix(parent) not in CONTAINERS:
            continue
        try:
            holds = parent.is_file() or any((parent / node).is_file() for node in NODES)
            holds = holds and not file.is_file()
        except OSError:
            return
        if holds:
            raise UserError(
                f"{what} is an array in {parent}, which is named with a colon",
                got=path,
                hint=f"{parent}:{file.relative_to(parent)}",
            )


@lru_cache(MOST_KEPT)
def split(path: Path) -> tuple[Path, str | None]:
    """Split `file.h5:/group/name` into the file and the array's name; None for other paths."""
    found = CONTAINER.fullmatch(str(path))
    if found is None:
        return path, None
    parts = [part for part in found[2].split("/") if part not in ("", ".")]
    return Path(found[1]), "/".join(parts) or None


def partial_path(path: Path, run_id: str) -> Path:
    """Return the temporary path of an unfinished file: in the same folder, so that the rename is atomic."""
    file, _ = split(path)
    return file.with_name(f".{file.name}.{run_id}.partial")


def journal_folder(path: Path) -> Path:
    """Return the folder of the journal of an unfinished streamed run. path: the output's file."""
    return path.with_name(f"{path.name}.journal")


def job_paths(path: Path, run_id: str) -> tuple[Path, Path]:
    """Return the temporary path, with OUTPUT's suffix, of a file that a job writes, and the path that the job
    gets: the same path, with the array's name if one was given."""
    file, _ = split(path)
    partial = file.with_name(f".{file.stem}.{run_id}.partial{file.suffix}")
    return partial, Path(f"{partial}{str(path)[len(str(file)) :]}")


def abandoned(path: Path) -> list[Path]:
    """Return the unfinished files that killed runs of this output have left, but those that a later run can
    resume. The output must be locked."""
    file, _ = split(path)
    stem, end = re.escape(f".{file.stem}"), re.escape(file.suffix)
    name = re.compile(rf"{stem}{end}\.{RUN}(\.steps)?\.partial|{stem}\.{RUN}\.partial{end}")
    return [one for one in file.parent.iterdir() if name.fullmatch(one.name)]


def is_kept(partial: Path) -> bool:
    """Return whether a later run can resume this file, or the folder of images that it is in."""
    return any(part.endswith(f".{KEPT}.partial") for part in partial.parts)


@lru_cache(MOST_KEPT)
def suffix(path: Path) -> str:
    """Return the suffix that determines the format, also of a temporary name: .NAME.SUFFIX.RUN.partial."""
    name = Path(path.name)
    if name.suffix == ".partial":
        name = name.with_suffix("").with_suffix("")
    return name.suffix.lower()

"""Whether writing an output would replace an input, by whatever names the two are given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import FOLDERS, array_at, is_same_array
from meshrun.runner.storage.paths import suffix

Place = tuple[Path, str | None]  # a file or folder, and the name of an array in it


def check_overwrites(
    inputs: Sequence[tuple[str, Place]], targets: Sequence[Path], *, whole: bool, allowed: bool
) -> None:
    """Raise UserError for an output that is an input, unless that is `allowed`, or that lies inside one.

    Links to a file are the file. Nothing is an input that does not exist.

    Parameters
    ----------
    inputs: what each is called in messages, such as "INPUT", and where it is.
    targets: paths of the outputs.
    whole: an output replaces its whole file, rather than an array in it.
    allowed: outputs may replace inputs.
    """
    for target in targets:
        file, name = array_at(target)
        for what, place in inputs:
            shown = place[0] if place[1] is None else f"{place[0]}:{place[1]}"
            if not place[0].exists():
                continue
            if suffix(place[0]) in FOLDERS and _inside(_folder(file, name), _folder(*place)):
                raise UserError(f"OUTPUT {target} lies inside {what} {shown}", hint="another folder")
            if not allowed and _replaces((file, name), place, whole):
                same = "is" if (file, name or None) == (place[0], place[1] or None) else "is the same as"
                same = "contains" if _inside(_folder(*place), _folder(file, name)) else same
                raise UserError(
                    f"OUTPUT {target} {same} {what} {shown}, which the run would replace",
                    hint=f"another name for OUTPUT, or {option('overwrite_input', True)}",
                )


def _replaces(target: Place, place: Place, whole: bool) -> bool:
    (file, name), (other_file, other) = target, place
    if not same_file(file, other_file):
        # A folder is replaced with all that is in it; an array of a store may also be given as a folder.
        one, another = _folder(file, name), _folder(other_file, other)
        return suffix(file) in FOLDERS and (same_file(one, another) or _inside(another, one))
    return whole or name is None or is_same_array(file, name, other or "")


def _folder(file: Path, name: str | None) -> Path:
    """Return the folder of an array in a Zarr store; another file is its own."""
    return file / (name or "") if suffix(file) in FOLDERS else file


def same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are the same file or folder, which need not exist."""
    if one.exists() and other.exists():
        return os.path.samefile(one, other)
    return one.resolve() == other.resolve()


def _inside(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder or in a folder of it."""
    return any(same_file(parent, folder) for parent in path.resolve().parents)

"""Add arrays to a file that holds others: copy the old file; the run adds the arrays to the copy.

The old file does not change until the copy replaces it. The chunks of a Zarr store are hard-linked instead of
copied, if the file system has hard links; a single file is copied whole, by the kernel if possible.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.files import NO_LINKS, allocate
from meshrun.runner.storage.file_errors import listing

PIECE = 1 << 30  # bytes that the kernel copies at a time
UNCOPYABLE = (errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)


def only_array(path: Path, found: Sequence[str], *, before: str = ":", none: str = "no array") -> str:
    """Return the name of a file's array; raise UserError if it does not have exactly one.

    found: the names of its arrays. before: what joins a path and a name. none: what a file without one holds.
    """
    if len(found) != 1:
        raise UserError(
            f"{path} holds {len(found)} arrays" if found else f"{path} holds {none}",
            got=listing(found) or None,
            hint=f"{path}{before}{found[0]}" if found else None,
        )
    return found[0]


def check_array(file: Path, name: str, kinds: Mapping[str, str]) -> None:
    """Raise UserError if an array `name` cannot be created without affecting others.

    kinds: "array", "group" or "link", for `name` and the groups that it is in ("" for the root), as far as
    they exist.
    """
    if file.is_symlink():
        raise UserError(f"{file} is a link", hint=f"the file that it points to, {file.resolve()}")
    for place, kind in kinds.items():
        at = f"{file}:{place}" if place else str(file)
        if place != name and kind == "array":
            raise UserError(f"{at} is an array, which cannot hold others", got=name, hint="another name")
        if place != name and kind == "link":
            raise UserError(f"{at} is a link, through which nothing is written", got=name)
        if place == name and kind == "group":
            raise UserError(f"{at} is a group", expected="an array's name", hint="another name")


def check_alone(file: Path, others: Collection[str]) -> None:
    """Raise UserError if a file that will be replaced contains `others`."""
    if others:
        raise UserError(
            f"{file} holds other arrays, which would be lost: the whole file is replaced",
            got=listing(sorted(others)),
            hint="another file",
        )


def prefixes(name: str) -> list[str]:
    """Return the groups that an array is in, from the root, and the array: "", "a", "a/b" for "a/b"."""
    parts = name.split("/") if name else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def copy_file(old: Path, new: BinaryIO) -> None:
    """Copy a file's contents and permissions; RunError, before anything is copied, if there is no room."""
    with open(old, "rb", buffering=0) as source:
        status = os.fstat(source.fileno())
        _check_room(old, status.st_size)
        allocate(new.fileno(), status.st_size)
        try:
            done = 0
            while count := os.copy_file_range(source.fileno(), new.fileno(), PIECE, done, done):
                done += count
        except OSError as reason:
            if reason.errno not in UNCOPYABLE:
                raise
            new.seek(0)
            shutil.copyfileobj(source, new, 1 << 24)
            new.flush()
    os.fchmod(new.fileno(), status.st_mode & 0o777)


def link_folder(old: Path, new: Path, copied: Collection[str], skipped: Sequence[Path]) -> list[Path]:
    """Fill the new folder with hard links to the old one's files; return its folders and copied files.

    copied: names of files that are copied, because they will be changed. skipped: folders of the old one to
    leave out. Files that cannot be linked are copied; RunError if there is no room for that.
    """
    made: list[Path] = []
    left_out = set(skipped)

    def skip(folder: str, names: list[str]) -> list[str]:
        made.append(new / Path(folder).relative_to(old))
        return [name for name in names if Path(folder, name) in left_out]

    shutil.copytree(
        old, new, symlinks=True, ignore=skip, copy_function=_linker(old, copied, made), dirs_exist_ok=True
    )
    return made


def _linker(old: Path, copied: Collection[str], made: list[Path]) -> Callable[[str, str], object]:
    """Return a function that links one file; if one cannot be linked, there must be room to copy all."""
    has_room = False

    def link(source: str, target: str) -> None:
        nonlocal has_room
        if os.path.basename(source) not in copied:
            try:
                os.link(source, target)
                return
            except OSError as reason:
                if reason.errno not in NO_LINKS:
                    raise
            if not has_room:
                files = (os.path.join(folder, name) for folder, _, names in os.walk(old) for name in names)
                _check_room(old, sum(os.lstat(file).st_size for file in files), " has no hard links")
                has_room = True
        shutil.copy2(source, target)
        made.append(Path(target))

    return link


def _check_room(old: Path, needed: int, why: str = "") -> None:
    free = free_bytes(old.parent)
    if needed > free:
        raise RunError(
            f"{old} cannot be copied, to keep its other arrays",
            got=f"{free:,} bytes free on its disk" + (f"; its file system{why}" if why else ""),
            expected=f"{needed:,}",
            hint="an output file of its own, on another disk",
        )


def free_bytes(folder: Path) -> int:
    """Return how many bytes a user may still write there."""
    return shutil.disk_usage(folder).free

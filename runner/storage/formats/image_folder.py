"""A folder of images: each file is a separate array, identified by its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.storage.file_errors import listing
from meshrun.runner.storage.formats.registry import FOLDERS, FORMATS, check_name, check_place
from meshrun.runner.storage.paths import BESIDE, suffix

SUFFIXES = tuple(name for name, module in FORMATS.items() if module in ("npy", "image", "tiff"))
LOSSY = (".jpg", ".jpeg")


@dataclass(frozen=True)
class Image:
    """A file of the folder. size: bytes. changed: nanoseconds since 1970 of its last change."""

    name: str
    size: int
    changed: int

    @property
    def key(self) -> int:
        """A number of 128 bits that identifies the image and its state; it changes if the file does."""
        text = os.fsencode(self.name) + b"\0%d\0%d" % (self.size, self.changed)
        return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")


@dataclass(frozen=True)
class Folder:
    """Contents of a folder when it was listed. images: by name. others: names of other files, skipped."""

    path: Path
    images: tuple[Image, ...]
    others: tuple[str, ...]


def open_folder(path: Path) -> Folder | None:
    """Return a folder's images, not those of folders in it; None if the path is not a folder of files.

    Hidden files are ignored. UserError if there is no image.
    """
    images, others = [], []
    place = str(path)
    try:
        if not path.is_dir() or suffix(path) in FOLDERS:
            return None
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                place = entry.path
                if entry.is_file() and suffix(Path(entry.name)) in SUFFIXES:
                    found = entry.stat()
                    images.append(Image(entry.name, found.st_size, found.st_mtime_ns))
                else:
                    others.append(entry.name)
    except OSError as reason:
        raise UserError(f"cannot read {place}", why=reason.strerror or reason) from reason
    if not images:
        raise UserError(
            f"the folder {path} holds no image",
            got=listing(sorted(others)) or "nothing",
            expected=f"files that end in {', '.join(SUFFIXES)}",
        )
    return Folder(path, tuple(sorted(images, key=lambda image: image.name)), tuple(sorted(others)))


def check_output_folder(path: Path, images: Sequence[Image]) -> None:
    """Refuse an output folder, before any work, if it or files with these images' names cannot be created."""
    if suffix(path) in FORMATS:
        raise UserError(
            "the input is a folder of images, the output a file", got=path, expected="a folder's name"
        )
    check_place(path, "output", folder=True, beside=BESIDE)
    for image in images:
        check_name(image.name, path.parent, f"output {path / image.name}", BESIDE)
    try:
        held = os.listdir(path) if path.is_dir() else []
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    if held:
        raise UserError(f"the output folder {path} is not empty", got=listing(sorted(held)), hint="a new one")

"""Files that are made once for a user and kept, such as compiled kernels.

What another user could have put there is not read. A file ends with its checksum: one that is cut short is
made again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

CHECKSUM = 32  # bytes at a file's end


def is_usable(folder: Path) -> bool:
    """Return whether the folder is this user's alone; makes it if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _is_own(folder, stat.S_ISDIR) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def read(path: Path) -> bytes | None:
    """Return a kept file's contents; None if there is none that is whole and this user's."""
    try:
        content = path.read_bytes() if _is_own(path, stat.S_ISREG) else b""
    except OSError:
        return None
    whole = len(content) > CHECKSUM and hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]
    return content[:-CHECKSUM] if whole else None


def write(path: Path, content: bytes) -> None:
    """Keep a file, for other ranks too, which may write the same one. Raises OSError."""
    made = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.partial")
    try:
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
        with open(handle, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return whether it is there, no link, this user's, and nobody else can write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

"""Keep files that are made once for a user, such as compiled kernels.

A file that another user could have written is not read. Each file ends with its checksum, so that a truncated
one is not read either.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

CHECKSUM = 32  # bytes at a file's end


def is_usable(folder: Path) -> bool:
    """Return whether only this user can write to the folder. Create it if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _is_own(folder, stat.S_ISDIR) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def read(path: Path) -> bytes | None:
    """Return a kept file's contents; None if it is missing, truncated, or writable by others."""
    try:
        content = path.read_bytes() if _is_own(path, stat.S_ISREG) else b""
    except OSError:
        return None
    whole = len(content) > CHECKSUM and hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]
    return content[:-CHECKSUM] if whole else None


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: other ranks may read or write the same file. Raises OSError."""
    made = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.partial")
    try:
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
        with open(handle, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return whether the path exists, is no link, and belongs to this user, who alone can write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

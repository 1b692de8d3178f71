"""Keep what is made once for a user: compiled kernels, and the choices that were measured for them.

All of it is in one folder. A file is named after a hash of all that its contents follow from, and ends with a
checksum, so that a truncated one is not read; nor is one that another user could have written.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meshrun.runner.system.launcher import environment

CHECKSUM = 32  # bytes at a file's end
KEY = 40  # digits of a file's name


def cache_folder(variables: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder for this user's compiled files, which may not exist; None without a home."""
    known = environment() if variables is None else variables
    base = known.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "meshrun"
    home = known.get("HOME", "")
    return Path(home) / ".cache" / "meshrun" if home.startswith("/") else None


def path_of(folder: Path | None, words: Sequence[str], suffix: str) -> Path | None:
    """Return the file for what follows from `words`; None if nothing can be kept in the folder.

    folder: None: nothing is kept. suffix: of the kind of contents, such as ".so".
    """
    if folder is None or not is_usable(folder):
        return None
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:KEY]
    return folder / f"{key}{suffix}"


def is_usable(folder: Path) -> bool:
    """Return whether only this user can write to the folder. Create it if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _is_own(folder, stat.S_ISDIR) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def read(path: Path | None) -> bytes | None:
    """Return a kept file's contents; None if it is missing, truncated, or writable by others."""
    if path is None:
        return None
    try:
        content = path.read_bytes() if _is_own(path, stat.S_ISREG) else b""
    except OSError:
        return None
    whole = len(content) > CHECKSUM and hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]
    return content[:-CHECKSUM] if whole else None


def keep(path: Path | None, content: bytes) -> Path | None:
    """Write a file for later runs; return its path, or None if that fails, as on a full disk."""
    if path is None:
        return None
    try:
        write(path, content)
    except OSError:
        return None
    return path


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

"""One run at a time writes an output: a lock beside it, which a process that ends in any way lets go.

Where the file system has no locks, a claim: a file that says which process has it, and that a later run
takes over when that process is gone. What another host has claimed, only a person can know to be stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from meshrun.runner import files
from meshrun.runner.errors import UserError
from meshrun.runner.processes import boot_id, process_stat

UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # file systems without locks
YOUNG = 10.0  # seconds after a change in which a folder may not be locked yet
WAIT = "another output, or wait for it (ps, squeue)"


def private_folder(kind: str, parent: Path | None = None) -> Path:
    """Make a folder of this process, for this user only, and remove those that killed processes have left.

    kind: of folder; only others of the same kind are removed, and only where their process is gone. parent:
    None for the folder of temporary files. A folder's file "also", if there is one, names another folder to
    remove with it.
    """
    home = parent or Path(tempfile.gettempdir())
    for old in home.glob(f"meshrun-{kind}-*"):
        _remove_abandoned(old)
    folder = Path(tempfile.mkdtemp(prefix=f"meshrun-{kind}-", dir=home))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # without locks, nobody removes it for us
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for path in [path for path in _held if not path.exists()]:
        os.close(_held.pop(path))
    _held[folder] = descriptor  # until it is removed, or this process ends
    return folder


_held: dict[Path, int] = {}


def _remove_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone, a link, or another user's
        return
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < YOUNG:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        also = folder / "also"
        others = [Path(os.fsdecode(also.read_bytes()))] if also.is_file() else []
        for each in (*others, folder):
            shutil.rmtree(each, ignore_errors=True)
    except OSError:  # its process lives
        return
    finally:
        os.close(descriptor)


def hold(output: Path) -> Callable[[], None]:
    """Keep other runs from writing `output`; what is returned ends that. UserError where one is at it."""
    path = output.with_name(f".{output.name}.lock")
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            os.close(file)
            raise UserError(f"another run is writing {output}", hint=WAIT) from reason
        except OSError as reason:
            if reason.errno not in UNLOCKABLE:
                os.close(file)
                raise UserError(
                    f"cannot lock {path}", why=reason.strerror, hint="an output on another file system"
                ) from reason
            _release(path, file)
            return _claim(output)
        if _is(path, file):  # else its last holder has removed it meanwhile
            held = path.absolute()  # the process may change its folder
            return lambda: _release(held, file)
        os.close(file)


def _open(path: Path) -> int:
    """The lock's file, which may be another user's, never through a link."""
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            file = os.open(path, flags | os.O_RDWR, 0o666)
        except PermissionError as reason:  # another user's is only to be read; enough, but on NFS
            if not os.path.lexists(path):
                raise _cannot_lock(path, reason) from reason
            file = os.open(path, (flags & ~os.O_CREAT) | os.O_RDONLY)
    except FileNotFoundError as reason:
        files.working_directory()  # UserError if that has been removed
        raise files.no_folder("output", path.parent) from reason
    except OSError as reason:
        raise _cannot_lock(path, reason) from reason
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _cannot_lock(path)
    return file


def _cannot_lock(path: Path, reason: OSError | None = None) -> UserError:
    """Return the error, whose hint names what is in the lock's place, if anything is."""
    got = "no plain file" if reason is None else str(reason.strerror)
    if path.is_symlink():
        got = "a link"
    hint = "another output, in a folder in which you can create files"
    if os.path.lexists(path):
        hint = f"{'rmdir' if got == 'Is a directory' else 'rm'} {path}, or another output"
    return UserError(f"cannot lock {path}", got=got, hint=hint)


def _is(path: Path, file: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _release(path: Path, file: int) -> None:
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(file)


def _claim(output: Path) -> Callable[[], None]:
    """What `hold` does, by a file that is made once."""
    path = output.with_name(f".{output.name}.claim")
    own = process_stat(os.getpid())
    mine = {
        "id": os.urandom(8).hex(),
        **_place(),
        "pid": os.getpid(),
        "started": str(own.start) if own else "",
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    while not _created(path, mine):
        found = _read(path)
        if found is None:  # its holder has removed it meanwhile
            continue
        if not _is_gone(found):
            process = f"process {found.get('pid', '?')} on host {found.get('host', '?')}"
            raise UserError(
                f"another run is writing {output}, on a file system without locks",
                got=f"a claim of {process} since {found.get('since', '?')}",
                hint=f"{WAIT}; if that process has ended: rm {path}",
            )
        _take_away(path, found)

    def release() -> None:
        if _read(path) == mine:
            path.unlink(missing_ok=True)

    return release


def _created(path: Path, claim: dict[str, Any]) -> bool:
    try:
        return files.create(path, json.dumps(claim) + "\n")
    except OSError as reason:
        raise UserError(f"cannot write {path}", why=reason.strerror, hint="another output") from reason


def _read(path: Path) -> dict[str, Any] | None:
    """A claim; without a key where it is broken; None where there is none."""
    try:
        with files.open_file(path) as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _take_away(path: Path, stale: dict[str, Any]) -> None:
    """Remove a claim, unless another run has done so meanwhile, and made its own."""
    aside = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    if (other := _read(aside)) is not None and other != stale:
        _created(path, other)
    aside.unlink(missing_ok=True)


def _is_gone(claim: dict[str, Any]) -> bool:
    """Whether a claim's process was one of this host's, as this one sees them, and is no more."""
    pid, place = claim.get("pid"), _place()
    if not isinstance(pid, int) or not place["boot"]:
        return False
    if any(claim.get(name) != value for name, value in place.items()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    found = process_stat(pid)
    # Else another process has its number.
    return found is not None and (found.has_ended or str(found.start) != claim.get("started"))


def _place() -> Mapping[str, object]:
    """Where a process's number means the same process: a host, up since a moment, and its processes seen."""
    boot = boot_id()
    try:
        seen = os.stat("/proc/self/ns/pid").st_ino if boot else 0
    except OSError:
        boot, seen = "", 0
    return {"host": os.uname().nodename, "boot": boot, "processes": seen}

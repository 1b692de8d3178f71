"""One run at a time writes an output: a lock beside it, which a process that ends in any way lets go."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from runner.errors import UserError

UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # file systems without locks


def hold(output: Path) -> Callable[[], None]:
    """Keep other runs from writing `output`; what is returned ends that. UserError where one is at it."""
    path = output.with_name(f".{output.name}.lock")
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            os.close(file)
            raise UserError(
                f"another run is writing {output}", hint="another output, or wait for it (ps, squeue)"
            ) from reason
        except OSError as reason:
            if reason.errno not in UNLOCKABLE:
                os.close(file)
                raise
        if _is(path, file):  # else its last holder has removed it meanwhile
            return lambda: _release(path, file)
        os.close(file)


def _is(path: Path, file: int) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _release(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)

"""The one writer of small files, and the checks of files whose names others can guess.

In a folder that others may write to, whatever has a name that can be guessed may be a link of theirs, into
any file that this process may write. So what is new is made under a random name, never through a link; and
what an earlier process has left is looked at before it is believed.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pwd
import shutil
import stat
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from meshrun.runner.errors import UserError

VIRTUAL = (Path("/proc"), Path("/sys"))
NEAR = 0.8  # least similarity of a name that is suggested
LONGEST = 255  # bytes of a name, where the file system does not say
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # file systems without hard links
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2(2)
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems and kernels that have none
DEVICES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))  # /dev/stdout may be a link to any file
UNCLAIMING = (errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that allocate only block by block


def write_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write `path` in one step: whoever reads it finds all of it, or what was there. OSError: nothing has
    changed.

    An old file's permissions stay; a link of that name is replaced, not followed; a device or a pipe is
    written to. durable: on the disk on return, its name too.
    """
    data = _bytes(content)
    if is_stream(path):
        with _open_stream(path) as stream:
            stream.write(data)
        return
    temporary = _beside(path)
    try:
        with open_new(temporary) as file:
            file.write(data)
            if (mode := _mode(path)) is not None:
                os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def _bytes(content: str | bytes) -> bytes:
    """Return a text's bytes; names in it may be no UTF-8."""
    return content.encode(errors="surrogateescape") if isinstance(content, str) else content


def keep_mode(old: Path, new: Path) -> None:
    """Give the file `new` the permissions of the file `old` that it replaces, if there is one. OSError."""
    if (mode := _mode(old)) is not None and new.is_file() and not new.is_symlink():
        os.chmod(new, mode)


def create(path: Path, content: str | bytes) -> bool:
    """Make `path`, whole, in one step; False when there is something of that name already. OSError."""
    data = _bytes(content)
    temporary = _beside(path)
    try:
        with open_new(temporary) as file:
            file.write(data)
        try:
            os.link(temporary, path)
        except OSError as reason:
            if reason.errno not in NO_LINKS:
                raise
            with open_new(path) as file:
                file.write(data)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def check_writable(path: Path) -> None:
    """OSError where `write_file` could not; nothing is left or changed."""
    if os.path.lexists(path) and (path.is_dir() or is_protected(path)):
        number = errno.EISDIR if path.is_dir() else errno.EACCES
        raise OSError(number, os.strerror(number), str(path))
    if is_stream(path):
        return
    temporary = _beside(path)
    open_new(temporary).close()
    temporary.unlink()


def check_exists(path: Path) -> None:
    """Raise UserError for a path at which there is nothing: it says what is missing, and a name like it."""
    if path.exists():
        return
    if path.is_symlink():
        raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist")
    above = next(one for one in path.parents if one.exists())
    if not above.is_dir():
        raise UserError(f"{path} does not exist", why=f"{above} is a file")
    missing = path if above == path.parent else [one for one in path.parents if not one.exists()][-1]
    why = None if missing == path else f"there is no folder {missing}"
    raise UserError(f"{path} does not exist", why=why, hint=_like(missing))


def _like(path: Path) -> str | None:
    """Return the path of what has a similar name in the same folder; None if nothing has."""
    try:
        names = {name.lower(): name for name in os.listdir(path.parent) if not name.startswith(".")}
    except OSError:
        return None
    close = get_close_matches(path.name.lower(), names, 1, NEAR)
    return str(path.parent / names[close[0]]) if close else None


def no_folder(what: str, folder: Path) -> UserError:
    """Build the error for a file that is to be written in a folder that does not exist. what: the file."""
    above = next(one for one in (folder, *folder.parents) if one.exists())
    can_be_made = above.is_dir() and os.access(above, os.W_OK | os.X_OK) and not is_virtual(above)
    hint = f"mkdir -p {folder}" if can_be_made else "another folder"
    return UserError(f"the {what}'s folder does not exist", got=folder, hint=hint)


def is_virtual(folder: Path) -> bool:
    """Return whether a folder shows the system's state, so that nothing can be created in it."""
    resolved = folder.resolve()
    return any(one in VIRTUAL for one in (resolved, *resolved.parents))


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder; no error if it is missing, or while others remove it too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders in one step; False where the file system cannot. OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    names = os.fsencode(one), os.fsencode(other)
    if library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number not in NO_EXCHANGE:
        raise OSError(number, os.strerror(number), str(other))
    return False


def is_stream(path: Path) -> bool:
    """Whether it is there and no file that can be replaced: a terminal, a pipe, /dev/stdout."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(kind) or stat.S_ISFIFO(kind) or (path.parent in DEVICES and stat.S_ISREG(kind))


def _open_stream(path: Path) -> BinaryIO:
    """To write; OSError (ENXIO) for a pipe that nobody reads, rather than to wait for a reader."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb")


def is_protected(path: Path) -> bool:
    """Whether what is at `path` is not to be written, by its permission bits; root, whom they do not stop,
    goes by them too."""
    try:
        return not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK)
    except FileNotFoundError:
        return False


def open_new(path: Path) -> BinaryIO:
    """A new file, to read and write; FileExistsError where there is anything, a link too."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(path, "r+b", opener=lambda name, _: os.open(name, flags, 0o666))


def open_file(path: Path, write: bool = False) -> io.FileIO:
    """A file that is there, unbuffered; OSError (ELOOP) for a link."""
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return io.FileIO(path, "r+" if write else "r", opener=lambda name, _: os.open(name, flags))


def check_own(path: Path, folder: bool, hint: str, inside: str = "") -> None:
    """Refuse what nobody but another user, or a link, can have put there; it is there. UserError.

    folder: it has to be one, and all that is in it is looked at too; else a file with no other name.
    inside: of a folder, the only one in it that is looked at.
    """
    _check_own(path, folder, path, hint)
    whole = path
    for part in Path(inside).parts:
        whole /= part
        _check_own(whole, folder, path, hint)
    for place, folders, names in os.walk(whole) if folder else ():
        for name in folders:
            _check_own(Path(place, name), True, path, hint)
        for name in names:
            _check_own(Path(place, name), False, path, hint)


def _check_own(path: Path, folder: bool, whole: Path, hint: str) -> None:
    found = path.lstat()
    kind = stat.S_ISDIR if folder else stat.S_ISREG
    got, expected = "", "a folder" if folder else "a file"
    if stat.S_ISLNK(found.st_mode):
        got = f"a link to {os.readlink(path)}"
    elif not kind(found.st_mode):
        got = "a folder" if stat.S_ISDIR(found.st_mode) else "a file" if folder else "neither file nor folder"
    elif not folder and found.st_nlink > 1:
        got, expected = f"a file with {found.st_nlink} names", "a file with one"
    elif found.st_uid != os.geteuid() and found.st_uid != _owner_of_new(whole.parent):
        got, expected = f"{expected} of {_user(found.st_uid)}", f"one of {_user(os.geteuid())}"
    if got:
        raise UserError(f"{path} is not of a run of yours", got=got, expected=expected, hint=hint)


def _owner_of_new(folder: Path) -> int:
    """Whose a file is that this process makes there; a file server may make root somebody else."""
    temporary = _beside(folder / "owner")
    try:
        with open_new(temporary) as file:
            return os.fstat(file.fileno()).st_uid
    finally:
        temporary.unlink(missing_ok=True)


def longest_name(folder: Path) -> int:
    """Bytes of the longest name that a file in `folder` can have."""
    try:
        return os.pathconf(folder, "PC_NAME_MAX")
    except OSError:
        return LONGEST


def working_directory() -> str:
    """Path of the working directory. Raises UserError if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as reason:
        was = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")  # PWD may be of another process
        hint = "cd to one that exists"
        raise UserError("the working directory is gone", got=was, hint=hint) from reason


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as reason:
        if reason.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def temporaries(path: Path) -> str:
    """A pattern of the names under which `write_file` and `create` make `path`; a killed one leaves one."""
    return f"{_stem(path)}.*.partial"


def _beside(path: Path) -> Path:
    return path.with_name(f"{_stem(path)}.{os.urandom(8).hex()}.partial")


def _stem(path: Path) -> str:
    return os.fsencode(f".{path.name}")[: LONGEST // 2].decode(errors="ignore")


def _mode(path: Path) -> int | None:
    """The permissions of the file that is replaced; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode) & 0o777 if stat.S_ISREG(found.st_mode) else None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def allocate(descriptor: int, size: int) -> None:
    """Allocate `size` bytes on the disk; only set the file's size if the file system cannot allocate."""
    try:
        if size:
            fallocate(descriptor, size)
    except OSError as reason:
        if reason.errno not in UNCLAIMING:
            raise
        os.ftruncate(descriptor, max(size, os.fstat(descriptor).st_size))


def fallocate(descriptor: int, size: int) -> None:
    """Call fallocate(2). Python's posix_fallocate(3) would write every block if a file system lacks it."""
    while _system_call()(descriptor, 0, 0, size):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Callable[[int, int, int, int], int]:
    """Return the function of descriptor, mode, offset and length; its result is not 0 if it failed."""
    library = ctypes.CDLL(None, use_errno=True)
    call: Any = getattr(library, "fallocate64", None) or library.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found: Callable[[int, int, int, int], int] = call
    return found

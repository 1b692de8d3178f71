"""The library NCCL: finding it, its version, and one rank's communicator. The only speaker of NCCL.

Through the low-level bindings of NVIDIA's nccl4py, which call with raw pointers in under 0.1 us. CuPy's
`cupy.cuda.nccl` is as fast, but has no alltoall, gather and scatter, no memory allocation, windows,
pre-multiplied sum, configuration or last error; ctypes costs 0.8 us a call; nccl4py's own high level
(`nccl.core`) 12 us. The low level promises no stability between minor versions: the extras pin it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy

from runner.errors import RunError, UserError, first_line

SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
IN_PROGRESS = 7  # ncclInProgress
HOST_IMMEDIATE = 1  # ncclScalarHostImmediate


class NcclFailure(RunError):
    """NCCL said no: exit status 3, as nccl-tests has it."""

    exit_code = 3


@functools.cache
def load() -> Any:
    """nccl4py's low-level bindings with one libnccl behind them; UserError says which package brings one."""
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    hint = (
        f"pip install 'meshrun[cuda{major}]' (it brings nccl4py and nvidia-nccl-cu{major}), or --device cpu"
    )
    try:
        from nccl.bindings import nccl
    except ImportError as reason:
        raise UserError(
            "device data crosses ranks through NCCL, and nccl4py is not there",
            got=first_line(reason),
            hint=hint,
        ) from reason
    try:
        nccl.get_version()
    except (RuntimeError, nccl.NCCLError) as reason:
        raise UserError(
            "device data crosses ranks through NCCL, and no libnccl was found",
            got=first_line(reason),
            expected="libnccl.so.2",
            hint=hint,
        ) from reason
    return nccl


def version_number() -> int:
    """The loaded libnccl's version as NCCL counts: 22809 for 2.28.9."""
    number: int = load().get_version()
    return number


def version() -> str:
    """The loaded libnccl's version, such as "2.28.9"."""
    number = version_number()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def library_path() -> str:
    """The one file that libnccl came from, as the process's memory map names it.

    Raises UserError when two copies are loaded: a communicator of one is garbage to the other.
    """
    load()
    paths = mapped_libraries(Path("/proc/self/maps").read_text())
    if len(paths) > 1:
        raise UserError(
            "two copies of libnccl are loaded into one process",
            got=" and ".join(paths),
            expected="one",
            hint="one NCCL package per environment, and no other libnccl in LD_LIBRARY_PATH or LD_PRELOAD",
        )
    return paths[0] if paths else "not loaded"


def mapped_libraries(maps: str) -> list[str]:
    """The libnccl.so files in the text of a /proc/PID/maps."""
    return sorted({line.split()[-1] for line in maps.splitlines() if "/libnccl.so" in line})


@contextmanager
def failures(doing: str, comm: Any = None) -> Iterator[None]:
    """Turn nccl4py's error inside into NcclFailure, with the library's own last words."""
    nccl = load()
    try:
        yield
    except nccl.NCCLError as reason:
        words = nccl.get_last_error(comm if comm is not None else nccl.Comm())
        raise NcclFailure(
            f"NCCL failed while {doing}",
            got=": ".join(part for part in (first_line(reason), words.strip()) if part),
            hint="NCCL_DEBUG=WARN for the library's own account, NCCL_DEBUG=INFO for all of it",
        ) from reason


def new_identity() -> bytes:
    """A unique id, by which the ranks of one communicator find each other; one rank makes it."""
    with failures("making a unique id"):
        return bytes(memoryview(load().get_unique_id()))


class Communicator:
    """One rank of an NCCL communicator on the current device; `handle` is what the bindings' calls take.

    cta_policy: ncclConfig_t's, None for the library's own. peers: how many ranks this one will
    exchange messages with at most, where that is known.
    """

    def __init__(
        self,
        size: int,
        rank: int,
        identity: bytes,
        *,
        cta_policy: int | None = None,
        peers: int | None = None,
    ) -> None:
        self.nccl = load()
        self.size, self.rank = size, rank
        number = version_number()
        config = self.nccl.Config()
        # As nccl-tests sets them, each from the version on that knows it.
        if cta_policy is not None:
            config.cta_policy = cta_policy
        if number >= 22800:
            config.nvlink_centric_sched = 1
        if peers is not None and number >= 23000:
            config.max_p2p_peers = peers
        unique = self.nccl.UniqueId.from_buffer(bytearray(identity))
        with failures(f"joining {size} ranks"):
            self.handle = self.nccl.comm_init_rank_config(size, unique, rank, config.ptr)

    def check(self) -> None:
        """Raise NcclFailure when something has gone wrong in the background."""
        with failures("asking for asynchronous errors", self.handle):
            status = self.nccl.comm_get_async_error(self.handle)
            if status not in (0, IN_PROGRESS):
                raise self.nccl.NCCLError(status)

    def abort(self) -> None:
        """Give up what is under way, on this rank alone."""
        with failures("aborting", self.handle):
            self.nccl.comm_abort(self.handle)

    def close(self) -> None:
        with failures("closing", self.handle):
            self.nccl.comm_destroy(self.handle)

"""The library NCCL: finding it, its version, and one rank's communicator. The only speaker of NCCL.

Through the low-level bindings of NVIDIA's nccl4py, which call with raw pointers in under 0.1 us. CuPy's
`cupy.cuda.nccl` is as fast, but has no alltoall, gather and scatter, no memory allocation, windows,
pre-multiplied sum, configuration or last error; ctypes costs 0.8 us a call; nccl4py's own high level
(`nccl.core`) 12 us. The low level promises no stability between minor versions: the extras pin it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy

from runner.comm.api import Control
from runner.comm.collective_call import gather_calls
from runner.errors import RunError, UserError, first_line

OLDEST = 21900  # the first with ncclMemAlloc and ncclCommRegister
CTA_POLICY = 22700
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
        number = nccl.get_version()
    except (RuntimeError, nccl.NCCLError) as reason:
        raise UserError(
            "device data crosses ranks through NCCL, and no libnccl was found",
            got=first_line(reason),
            expected="libnccl.so.2",
            hint=hint,
        ) from reason
    if number < OLDEST:
        raise UserError(
            "the libnccl found is too old",
            got=f"NCCL {dotted(number)} ({nccl.get_library_path()})",
            expected=f"{dotted(OLDEST)} or later",
            hint=hint,
        )
    return nccl


def version_number() -> int:
    """The loaded libnccl's version as NCCL counts: 22809 for 2.28.9."""
    number: int = load().get_version()
    return number


def version() -> str:
    """The loaded libnccl's version, such as "2.28.9"."""
    return dotted(version_number())


def dotted(number: int) -> str:
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def library_path() -> str:
    """The one file that libnccl came from, as the process's memory map names it.

    Raises UserError when two copies are loaded: a communicator of one is garbage to the other.
    """
    nccl = load()
    paths = mapped_libraries(Path("/proc/self/maps").read_text())
    if len(paths) > 1:
        raise UserError(
            "two copies of libnccl are loaded into one process",
            got=" and ".join(paths),
            expected="one",
            hint="one NCCL package per environment, and no other libnccl in LD_LIBRARY_PATH or LD_PRELOAD",
        )
    return paths[0] if paths else str(nccl.get_library_path())


def mapped_libraries(maps: str) -> list[str]:
    """The libnccl.so files in the text of a /proc/PID/maps; one replaced on disk meanwhile says so."""
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line}
    return sorted(path for path in paths if path.rpartition("/")[2].startswith("libnccl.so"))


# The functions that make collectives of, by the bindings' names.
MAKING = {
    "all_gather": "ncclAllGather",
    "all_reduce": "ncclAllReduce",
    "allto_all": "ncclAlltoAll",
    "broadcast": "ncclBroadcast",
    "gather": "ncclGather",
    "group_end": "ncclGroupEnd",
    "group_start": "ncclGroupStart",
    "recv": "ncclRecv",
    "reduce": "ncclReduce",
    "reduce_scatter": "ncclReduceScatter",
    "scatter": "ncclScatter",
    "send": "ncclSend",
}


@functools.cache
def addresses() -> dict[Callable[..., Any], int]:
    """Of the functions that make collectives: the bindings' own, and where libnccl's are that they call."""
    nccl = load()
    library = ctypes.CDLL("libnccl.so.2")  # the one that is loaded
    found = {}
    for name, theirs in MAKING.items():
        if hasattr(library, theirs):  # older libraries lack some
            found[getattr(nccl, name)] = ctypes.cast(getattr(library, theirs), ctypes.c_void_p).value or 0
    return found


def agreed(control: Control) -> str:
    """Version and file, for people, once all ranks have found one version; collective.

    Raises UserError on every rank alike.
    """
    found = gather_calls(control, lambda: (version(), library_path()), f"[rank {control.rank}]")
    for rank, (other, path) in enumerate(found):
        if other != found[0][0]:
            raise UserError(
                "ranks have different versions of NCCL",
                got=f"{found[0][0]} ({found[0][1]}) on rank 0, {other} ({path}) on rank {rank}",
                expected="one version",
                hint="the same environment on every host",
                everywhere=True,
            )
    return f"NCCL {found[control.rank][0]} ({found[control.rank][1]})"


def failure(doing: str, reason: Exception) -> NcclFailure:
    """What nccl4py raised, with the library's own last words."""
    nccl = load()
    words = nccl.get_last_error(nccl.Comm())  # of any communicator: NCCL keeps one text
    return NcclFailure(
        f"NCCL failed while {doing}",
        got=": ".join(part for part in (first_line(reason), words.strip()) if part),
        hint="NCCL_DEBUG=WARN for the library's own account, NCCL_DEBUG=INFO for all of it",
    )


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Turn nccl4py's error inside into NcclFailure."""
    try:
        yield
    except load().NCCLError as reason:
        raise failure(doing, reason) from reason


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
        self._lock, self._over = threading.Lock(), False
        number = version_number()
        if cta_policy is not None and number < CTA_POLICY:
            raise UserError(
                "this NCCL has no CTA policy", got=f"NCCL {version()}",
                expected=f"{dotted(CTA_POLICY)} or later", everywhere=True,
            )  # fmt: skip
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
        with self._lock, failures("asking for asynchronous errors"):
            status = 0 if self._over else self.nccl.comm_get_async_error(self.handle)
            if status not in (0, IN_PROGRESS):
                raise self.nccl.NCCLError(status)

    def valid(self) -> None:
        """Return, unless `abort` was called: then wait for the end of the process, which is near.

        What aborted work leaves behind looks like a result, or like a failure of its own.
        """
        if self._over:
            threading.Event().wait()

    def abort(self) -> None:
        """Give up what is under way, on this rank alone; from any thread. Nothing after `close`."""
        with self._lock:  # nobody asks about a communicator while it goes
            over, self._over = self._over, True
        if not over:
            with failures("aborting"):
                self.nccl.comm_abort(self.handle)

    def close(self) -> None:
        self.valid()
        with self._lock:
            self._over = True
        with failures("closing"):
            self.nccl.comm_destroy(self.handle)

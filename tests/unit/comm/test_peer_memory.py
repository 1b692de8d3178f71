"""Memory of other ranks is opened once, for the GPU that accesses it, and unmapped before it is freed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.peer_memory import PAGE, PeerMemory, Unreachable, allocate_exportable
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.raw.memory import Memory


class Box:
    """The CUDA IPC calls of a process. shut: why it cannot export or attach; empty if it can."""

    def __init__(self, rank: int, shut: str = "") -> None:
        self.rank, self.shut = rank, shut
        self.current: int | None = None
        self.calls: list[str] = []

    @contextmanager
    def on(self, gpu: int) -> Any:
        self.current = gpu
        yield
        self.current = None

    def allocate(self, kind: str, nbytes: int, gpu: int) -> Memory:
        return Memory(1000 * (self.rank + 1), nbytes, "device", gpu)

    def export(self, memory: Memory) -> bytes:
        self.calls.append("export")
        if self.shut == "export":
            raise RuntimeError("operation not supported\nsecond line")
        return b"%d" % memory.address

    def attach(self, token: bytes, nbytes: int, gpu: int) -> Memory:
        self.calls.append(f"attach {token.decode()} on {self.current} as {gpu}")
        if self.shut == "attach":
            raise RuntimeError("")
        return Memory(int(token), nbytes, "device", gpu)

    def release(self, memory: Memory) -> None:
        self.calls.append(f"release {memory.address}")


def shared(control: Control, box: Any, owner: int | None = None) -> tuple[Any, list[str]]:
    peers = PeerMemory(control, box)
    own = allocate_exportable(box, 100, gpu=0)
    other = 1 - control.rank
    for _ in range(2):
        handle = peers.publish({control.rank: own})[other]
        try:
            reached: Any = peers.open(handle, 3, owner)
        except Unreachable as reason:
            reached = str(reason)
    peers.close()
    return reached, box.calls


def on_two(**keywords: Any) -> list[tuple[Any, list[str]]]:
    shut = keywords.pop("shut", ["", ""])

    def body(control: ThreadComm) -> Any:
        return shared(control, Box(control.rank, shut[control.rank]), **keywords)

    return run_ranks(2, body)


@pytest.mark.parametrize(("owner", "seen"), [(None, 3), (1, 1)])
def test_memory_is_exported_and_opened_once(owner: int | None, seen: int) -> None:
    for rank, (reached, calls) in enumerate(on_two(owner=owner)):
        address = 1000 * (2 - rank)
        assert reached == Memory(address, 100, "device", seen)
        assert calls == ["export", f"attach {address} on 3 as {seen}", f"release {address}"]


def test_whole_pages_are_allocated() -> None:
    box: Any = Box(0)
    sizes = []
    box.allocate = lambda kind, nbytes, gpu: sizes.append(nbytes) or Memory(1, nbytes, "device", gpu)
    assert allocate_exportable(box, PAGE + 1, 0).nbytes == PAGE + 1
    assert sizes == [2 * PAGE]


def test_every_rank_learns_what_cannot_be_exported() -> None:
    (reached, _), (other, _) = on_two(shut=["export", ""])
    assert reached == Memory(2000, 100, "device", 3)
    assert other == "operation not supported"


def test_an_error_without_text_has_its_class_as_reason() -> None:
    (reached, _), (other, _) = on_two(shut=["attach", ""])
    assert reached == "RuntimeError"
    assert other == Memory(1000, 100, "device", 3)

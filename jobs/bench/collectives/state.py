"""What all sizes of one run share, and one measurement's place in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.bench.collectives.config import Settings
from jobs.bench.collectives.specs import Operation, Shape
from jobs.bench.collectives.traffic import Traffic
from runner import Buffer, Collectives, Control, Datatype, Progress, World

Wire = Callable[[float, float], tuple[float | None, float | None]]


def unknown(algbw: float, busbw: float) -> tuple[float | None, float | None]:
    return None, None


@dataclass
class Bench:
    """What all sizes of one run share.

    everyone: the ranks whose times are averaged and who wait for each other, nccl-tests' MPI_COMM_WORLD.
    numbers: their ranks in the world. colors: their groups' numbers. group: this rank's, with its
    buffers send and recv. trail: where this rank is, for the watchdog where one watches. detail: also stamp
    when each call is made. wire: GB/s on the tight link and its share of nominal, from algbw and busbw.
    nominal: GB/s of that link.
    offset: seconds that this rank's clock is ahead of rank 0's.
    """

    world: World
    everyone: Control
    numbers: Sequence[int]
    colors: Sequence[int]
    group: Collectives
    settings: Settings
    operation: Operation
    traffic: Traffic
    send: Buffer
    recv: Buffer
    trail: Progress
    watched: bool = False
    detail: bool = False
    offset: float = 0.0
    wire: Wire = unknown
    nominal: float | None = None
    checks: int = 0
    failures: int = 0

    def shape(self, size: int, datatype: Datatype) -> Shape:
        return self.operation.shape(size // datatype.itemsize, datatype, self.group.size, self.traffic)


@dataclass(frozen=True)
class Point:
    """One measurement's place in the run. elements: in the size that was asked for."""

    shape: Shape
    datatype: Datatype
    reduction: str
    root: int
    in_place: bool
    elements: int

    @property
    def bytes(self) -> int:
        """The size column: of the larger of input and result."""
        return max(self.shape.send, self.shape.recv) * self.datatype.itemsize

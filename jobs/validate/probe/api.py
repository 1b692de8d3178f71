"""What can be measured of a fleet: the only thing that the ladder and its verdict know of the machines.

A real fleet measures with its ranks, a rehearsal with a model that knows nothing of how its figures will be
judged (`jobs.validate.simulation.fleet`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from jobs.validate.plan import RungName
from jobs.validate.verdict import Unit

Seconds = np.ndarray[Any, np.dtype[np.float64]]

# memory: a copy inside the GPU's memory. product: a matrix product, nbytes of one operand. to_device and
# to_host: a copy between pinned host memory and the GPU.
Alone = Literal["memory", "product", "to_device", "to_host"]
ALONE: tuple[Alone, ...] = ("memory", "product", "to_device", "to_host")

EVEN = 16  # sides of matrices are multiples of it, as tiles are


def side(nbytes: int) -> int:
    """Of a square float32 matrix of about `nbytes`."""
    length = math.isqrt(nbytes // 4)
    return length - (length % EVEN if length > EVEN else 0)


def counted(what: str, nbytes: int) -> int:
    """What a rate of this operation on `nbytes` counts: bytes, of a product floating-point operations."""
    if what == "product":
        return 2 * side(nbytes) ** 3
    return 2 * nbytes if what == "memory" else nbytes  # read and written


Counter = tuple[str, str, str]  # host, part such as "GPU 3" or "mlx5_0 port 1", counter


@dataclass(frozen=True)
class Place:
    """Where a rank is. host: index into `Probe.hosts`. gpu: its number on that host, and of its rail."""

    rank: int
    host: int
    gpu: int


@dataclass(frozen=True)
class Wrong:
    """Data that is not what was written or sent.

    what: the measurement ("memory", "product", "to_device", "to_host", "copies", "flows" or "rings"). rank:
    where it was found. source: the rank that it came from; the same where a rank was alone, None where many
    took part. nbytes: of the operation. offset: of the first wrong byte. count: how many bytes are wrong.
    got, expected: the word there, as text.
    """

    what: str
    rank: int
    source: int | None
    nbytes: int
    offset: int
    count: int
    got: str
    expected: str


class Probe(Protocol):
    """Measurements of one fleet. Collective over its ranks, where there are any.

    Each returns seconds, float64, of one operation: a row for each thing measured, a column for each sample.
    Samples follow each other in time: what happens in between (a link that flaps) shows in single columns.
    NaN: that could not be measured.
    """

    @property
    def hosts(self) -> Sequence[str]:
        """Names, in the order of their first rank."""

    @property
    def places(self) -> Sequence[Place]:
        """In rank order. Hosts may have different numbers of GPUs."""

    @property
    def unit(self) -> Unit:
        """What its ranks compute on."""

    @property
    def absent(self) -> Mapping[RungName, str]:
        """Rungs that cannot be measured on these ranks, and why: CPUs have no way to a GPU."""

    def counters(self) -> Mapping[Counter, float | str]:
        """Counters and states of all hosts at this moment; empty where none can be read."""

    def wrong(self) -> Sequence[Wrong]:
        """What was wrong since this was last asked. Measurements check some of the data that they move."""

    def alone(self, what: Alone, nbytes: int, samples: int) -> Seconds:
        """(ranks, samples): every rank does it at the same time as all others, without the network."""

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        """(flows, samples): rank a sends `nbytes` to rank b, all flows (a, b) at the same time.

        Inside a host that is the way between two GPUs (NVLink), else each GPU's own NIC. A rank may be in
        one flow as the sender and in one as the receiver.
        """

    def no_copies(self) -> str:
        """Why some GPU cannot write into another's memory on its host, as for `copies`; "": all can."""

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        """(flows, samples): rank a writes `nbytes` into the memory of rank b of its host, with its GPU's copy
        engine and without a communication library, all flows at the same time. Ranks as for `flows`.
        """

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """(groups, samples): an all_reduce of `nbytes` in each group, all groups at the same time.

        Groups have no rank in common. The ring goes through each group in the order given.
        """

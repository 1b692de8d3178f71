"""The protocol of a probe: what can be measured, which is all that the ladder knows of the machines."""

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
SingleRankOp = Literal["memory", "product", "to_device", "to_host"]
SINGLE_RANK_OPS: tuple[SingleRankOp, ...] = ("memory", "product", "to_device", "to_host")

TILE = 16  # sides of matrices are multiples of it


def matrix_side(nbytes: int) -> int:
    """Side of a square float32 matrix of about `nbytes`."""
    length = math.isqrt(nbytes // 4)
    return length - (length % TILE if length > TILE else 0)


def operation_work(what: str, nbytes: int) -> int:
    """The work that a rate of this operation on `nbytes` counts: bytes, of a product operations."""
    if what == "product":
        return 2 * matrix_side(nbytes) ** 3
    return 2 * nbytes if what == "memory" else nbytes  # read and written


CounterKey = tuple[str, str, str]  # host, part such as "GPU 3" or "mlx5_0 port 1", counter


@dataclass(frozen=True)
class RankPlace:
    """Where a rank is. host: index into `Probe.hosts`. gpu: its number on that host, and the rail's."""

    rank: int
    host: int
    gpu: int


@dataclass(frozen=True)
class WrongData:
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
    """Measurements of one set of machines. Collective over its ranks, where there are any.

    Each returns seconds of one operation, float64: a row for each thing measured, a column for each sample.
    Samples follow each other in time, so what happens in between (a link that flaps) shows in single columns.
    NaN: could not be measured.
    """

    @property
    def hosts(self) -> Sequence[str]:
        """Names, in the order of their first rank."""

    @property
    def places(self) -> Sequence[RankPlace]:
        """In rank order. Hosts may have different numbers of GPUs."""

    @property
    def unit(self) -> Unit:
        """What the ranks compute on."""

    @property
    def unavailable(self) -> Mapping[RungName, str]:
        """Rungs that cannot be measured on these ranks, and why (CPUs have no host-to-GPU link)."""

    def counters(self) -> Mapping[CounterKey, float | str]:
        """Counters and states of all hosts now; empty where none can be read."""

    def wrong(self) -> Sequence[WrongData]:
        """Data found wrong since the last call. Measurements check some of the data that they move."""

    def single_rank(self, what: SingleRankOp, nbytes: int, samples: int) -> Seconds:
        """(ranks, samples): every rank by itself, all at the same time, without the network."""

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        """(flows, samples): rank a sends `nbytes` to rank b, all flows (a, b) at the same time.

        Inside a host a flow takes the way between two GPUs (NVLink), else each GPU's own NIC. A rank may be
        the sender of one flow and the receiver of one.
        """

    def copies_unavailable(self) -> str:
        """Why `copies` cannot be measured: some GPU cannot write into another's memory; "": all can."""

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        """(flows, samples): rank a writes `nbytes` into the memory of rank b of its host, all at the same
        time.

        The GPU's copy engine does it, without a communication library. Ranks as for `flows`.
        """

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """(groups, samples): an all_reduce of `nbytes` in each group, all groups at the same time.

        Groups have no rank in common. The ring goes through each group in the order given.
        """

"""The protocol of a probe: the measurements that the ladder can make on a fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.verdict import Unit
from meshrun.runner.world.stuck.nccl_ras import NcclDiagnostics

Seconds = np.ndarray[Any, np.dtype[np.float64]]
Flows = np.ndarray[Any, np.dtype[np.int64]] | Sequence[tuple[int, int]]  # (flows, 2): sender, receiver

# memory: a copy inside the GPU's memory. product: a float32 matrix product, nbytes of one operand. tensor: a
# product of float16 matrices, which a GPU repeats for TENSOR_SAMPLE in each sample. to_device and to_host: a
# copy between pinned host memory and the GPU.
SingleRankOp = Literal["memory", "product", "tensor", "to_device", "to_host"]
SINGLE_RANK_OPS: tuple[SingleRankOp, ...] = ("memory", "product", "tensor", "to_device", "to_host")
OPERAND_BYTES = {"product": 4, "tensor": 2}  # of an element of a product's operands
TENSOR_SAMPLE = 0.5  # seconds; without pauses between samples, so that clocks are those of a steady load

TILE = 16  # sides of matrices are multiples of this


def matrix_side(nbytes: int, itemsize: int) -> int:
    """Return the side of a square matrix of about `nbytes`, with elements of `itemsize` bytes."""
    length = math.isqrt(nbytes // itemsize)
    return length - (length % TILE if length > TILE else 0)


def operation_work(what: str, nbytes: int) -> int:
    """Return the work that a rate of this operation counts: bytes, or operations for a product."""
    if what in OPERAND_BYTES:
        return 2 * matrix_side(nbytes, OPERAND_BYTES[what]) ** 3
    return 2 * nbytes if what == "memory" else nbytes  # read and written


CounterKey = tuple[str, str, str]  # host, part such as "GPU 3" or "mlx5_0 port 1", counter


@dataclass(frozen=True)
class RankPlace:
    """Location of a rank, and what tells it from others in kind; "", () and None are unknown.

    host: index into `Probe.hosts`. gpu: its position on the host, and the number of its rail. number: of its
    GPU as nvidia-smi counts on that host. model: of its device. nic: its network ports, such as
    "mlx5_3 port 1"; ranks of a host with the same text share them. nic_model: of the ports. paths: type of
    the path to each rank of its host, ordered by position, as in `nvidia-smi topo -m`: "NV18", "PIX", "SYS",
    and "X" to itself. domain: the NVLink network of several hosts that its GPU belongs to.
    pxn: flows to another rail may leave through the NIC of that rail's GPU. nvlinks: of its GPU, those that
    are up.
    """

    rank: int
    host: int
    gpu: int
    number: int | None = None
    model: str = ""
    nic: str = ""
    nic_model: str = ""
    paths: tuple[str, ...] = ()
    domain: str = ""
    pxn: bool = False
    nvlinks: int | None = None


@dataclass(frozen=True)
class WrongData:
    """Data that differs from what was written or sent.

    what: the measurement, one of SINGLE_RANK_OPS, "copies", "flows" or "rings". rank: where it was found.
    source: the rank that it came from: `rank` itself if alone, None if many took part.
    nbytes: size of the operation. offset: of the first wrong byte. count: number of wrong bytes. got,
    expected: the word at `offset`, as text.
    """

    what: str
    rank: int
    source: int | None
    nbytes: int
    offset: int
    count: int
    got: str
    expected: str


@dataclass(frozen=True)
class LoadReadings:
    """What was read of a rank's GPU during "tensor": W, MHz, degrees Celsius; means unless named otherwise.

    None is unknown.
    """

    rank: int
    power: float | None = None
    highest_power: float | None = None
    clock: float | None = None
    lowest_clock: float | None = None
    highest_temperature: float | None = None
    highest_memory_temperature: float | None = None


class Probe(Protocol):
    """Measurements on one fleet. Collective over its ranks, if there are any.

    Each returns the seconds of one operation, float64: a row for each thing measured, a column for each
    sample. Samples are consecutive in time, so a link that flaps shows in single columns. NaN: failed.
    """

    @property
    def hosts(self) -> Sequence[str]:
        """Host names, ordered by their first rank."""

    @property
    def places(self) -> Sequence[RankPlace]:
        """Locations in rank order. Hosts may have different numbers of GPUs."""

    @property
    def unit(self) -> Unit:
        """What the ranks compute on."""

    @property
    def unavailable(self) -> Mapping[RungName, str]:
        """Rungs that cannot be measured on these ranks, with the reasons."""

    def counters(self) -> Mapping[CounterKey, float | str]:
        """Read the counters and states of all hosts; empty if none can be read."""

    def loads(self) -> Sequence[LoadReadings]:
        """Return what was read during the measurements of "tensor" so far; empty if nothing can be read."""

    def nccl_diagnostics(self) -> NcclDiagnostics | None:
        """Return what NCCL finds of its ranks; None without one that does (2.31)."""

    def wrong_data(self) -> Sequence[WrongData]:
        """Return the wrong data found since the last call. Measurements check some of the data they move."""

    def clock(self) -> float:
        """Return the seconds since some moment, by the time that measurements and `wait` take."""

    def wait(self, seconds: float) -> None:
        """Let time pass between measurements."""

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        """Time an operation that each rank does by itself, all at once. Returns (ranks, samples).

        ranks: those that do it (None: all); the others' rows are NaN.
        """

    def flows(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        """Time rank a sending `nbytes` to rank b, all flows (a, b) at once. Returns (flows, samples).

        Flows inside a host use the links between its GPUs (NVLink), others each GPU's own NIC. A rank may
        send one flow and receive one.
        """

    def copies_unavailable(self) -> str:
        """Return why `copies` is unavailable (some GPU cannot write into another's memory), or ""."""

    def copies(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        """Time rank a writing `nbytes` into the memory of rank b of its host. Returns (flows, samples).

        All copies run at once, by the GPUs' copy engines, without a communication library. Ranks as for
        `flows`.
        """

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """Time an all_reduce of `nbytes` in each group, all groups at once. Returns (groups, samples).

        Groups are disjoint. The ring passes through each group in the order given.
        """

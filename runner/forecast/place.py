"""Where a run is to take place: the rates between its ranks, and the time of what a rank does there."""

from __future__ import annotations

from dataclasses import dataclass

from meshrun.runner.forecast.machine import CORE, GB, Machine, Rate, known
from meshrun.runner.forecast.model import limits_on
from meshrun.runner.options.plan_options import PlanOptions

# GB/s that a GPU sends to others of its host in an all-to-all while it receives as much. Two and four H200s:
# 338 and 353 (benchmarks/results/nccl_tests_2.json, nccl_tests_4.json), three quarters of NVLink 4's peak;
# the same part of other generations' peaks. Other GPUs exchange over PCIe.
EXCHANGE = {"v100": 112, "a100": 225, "a100-40gb": 225, "h100": 338, "h200": 338, "b200": 676}
COPIES = 3  # of a message between CPU ranks of a host, each read and written by a core
NETWORK_GPU, NETWORK_HOST = 50, 12.5  # GB/s: 400 Gb/s for each GPU; 100 Gb/s for a host without GPUs
LATENCY_GPU, LATENCY_CPU = 7e-6, 2e-6  # seconds of a message: the smallest all-to-all of the same files; MPI
# TFLOP/s of cuBLAS on an H200, large products of random numbers: bfloat16 as measured, 71 % of its peak; the
# same part of the other peaks.
PRODUCTS = {"float64": 48, "float32": 48, "tf32": 350, "float16": 703, "bfloat16": 703}
MEASURED_PRODUCTS = ("h100", "h200")
PRODUCTS_CORE = {"float64": 25, "float32": 50}  # GFLOP/s of a core with 256-bit vectors


@dataclass(frozen=True)
class ExchangeRates:
    """exchange: bytes per second that one rank sends to ranks of its host, in an all-to-all. network: to
    other hosts. latency: seconds of a message."""

    exchange: Rate
    network: Rate
    latency: float


def links_of(
    machine: Machine, ranks_of_host: int, exchange: float | None, network: float | None
) -> ExchangeRates:
    """Return the rates between ranks: as given, in GB/s, or nominal."""
    if machine.gpus:
        over_pcie = machine.rates["both directions"].value / 2 / GB
        inside = float(EXCHANGE.get(known(machine.name) or "", over_pcie))
        outside, latency = float(NETWORK_GPU), LATENCY_GPU
    else:
        inside, outside, latency = CORE / 2 / COPIES, NETWORK_HOST / ranks_of_host, LATENCY_CPU
    return ExchangeRates(
        Rate(inside * GB) if exchange is None else Rate(exchange * GB, "as given"),
        Rate(outside * GB) if network is None else Rate(network * GB, "as given"),
        latency,
    )


@dataclass(frozen=True)
class Place:
    """Where a run is to take place. hosts: with equally many ranks, but for the last. memory: bytes for
    arrays of a rank, as the service `memory` of a job."""

    machine: Machine
    links: ExchangeRates
    ranks: int
    hosts: int
    memory: int

    @property
    def gpu(self) -> bool:
        return self.machine.gpus > 0

    @property
    def ranks_of_host(self) -> int:
        return -(-self.ranks // self.hosts)

    @property
    def overlaps(self) -> bool:
        """Whether messages go beside work: those of CPU ranks of one host are copied by their cores."""
        return self.gpu or self.hosts > 1

    def exchange(self, sent: float, ranks: int, messages: int, stride: int = 1) -> Stage:
        """Return an all-to-all among some ranks.

        sent: bytes that each rank sends to all others together, in so many messages. ranks: how many, each
        `stride` after the last. Messages within a host and between hosts go beside each other.
        """
        near = min(max(self.ranks_of_host // stride, 1), ranks)
        far = (ranks - near) / max(ranks - 1, 1)
        times = [
            (sent * (1 - far) / self.links.exchange.value, self.links.exchange),
            (sent * far / self.links.network.value, self.links.network),
        ]
        seconds, rate = max(times, key=lambda one: one[0])
        seconds += messages * self.links.latency
        return Stage("exchange", round(sent), rate, seconds, beside=self.overlaps, messages=messages)

    @property
    def cores(self) -> int:
        """Cores of a rank."""
        return max(self.machine.cores // self.ranks_of_host, 1)

    def memory_rate(self, part: float) -> Rate:
        """Return the bytes per second, read plus written, of work at this part of a GPU's or core's rate."""
        rate = self.machine.rates["kernel"]
        if self.gpu:
            return Rate(rate.value * part, rate.source)
        shared = self.machine.rates["host memory"].value / self.ranks_of_host
        return Rate(min(rate.value * part * self.cores, shared), rate.source)

    def products(self, precision: str) -> Rate | None:
        """Return a rank's operations per second in products of matrices; None if it is not known."""
        if not self.gpu:
            core = PRODUCTS_CORE.get(precision)
            return None if core is None else Rate(core * GB * self.cores)
        listed = known(self.machine.name) in MEASURED_PRODUCTS and precision in PRODUCTS
        return Rate(PRODUCTS[precision] * 1000 * GB) if listed else None

    def files(self, name: str, moved: float) -> list[Stage]:
        """Return the stages of a file's bytes of each rank: "read" or "write", and the copy of a GPU."""
        rate = self.machine.rates[name]
        found = [Stage(name, round(moved), rate, moved * self.ranks_of_host / rate.value)]
        if self.gpu:
            way = "to device" if name == "read" else "from device"
            copy = Stage(way, round(moved), self.machine.rates[way], moved / self.machine.rates[way].value)
            found.insert(0 if name == "write" else 1, copy)
        return found


@dataclass(frozen=True)
class Stage:
    """Work of the rank with the most of it. rate: of bytes, or of operations. beside: it overlaps with the
    other stages that say so. messages: that the rank sends."""

    name: str
    amount: int
    rate: Rate
    seconds: float
    unit: str = "bytes"
    beside: bool = False
    messages: int = 0


def place_of(machine: Machine, options: PlanOptions, ranks: int, hosts: int, local: int) -> Place:
    """Return the place of a run that options describe. local: the most ranks of a host."""
    cluster, limits = options.cluster, limits_on(machine, options.stream, local)
    links = links_of(machine, local, cluster.exchange_rate, cluster.network_rate)
    return Place(machine, links, ranks, hosts, limits.device if machine.gpus else limits.host)

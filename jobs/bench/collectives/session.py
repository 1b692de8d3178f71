"""Open and close the session of one operation: communicator, buffers, header and wire rate."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from meshrun import World
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings, Transport
from meshrun.jobs.bench.collectives.results import GpuMemoryUse, Header, RankDevice
from meshrun.jobs.bench.collectives.specs import (
    GUARD,
    SPECS,
    CollectiveSpec,
    Counts,
    Traffic,
    expert_shares,
    read_matrix,
)
from meshrun.jobs.measure.link_rates import RankLayout, assumed_algorithm, percent, wire_rate
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.clock import clock_offsets
from meshrun.runner.comm.collective_call import collective_call
from meshrun.runner.comm.collectives.api import Buffer, Collectives, Datatype, NcclTuning
from meshrun.runner.errors import UserError
from meshrun.runner.system import links
from meshrun.runner.system.launcher import environment
from meshrun.runner.system.links import gpu_links, network_rate
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

GIB = 1 << 30
FLOAT8_CAPABILITY = 90  # Hopper
FLOAT8_LIBRARY = 22400
NVLS_CAPABILITY = 90  # Hopper
CONNECTING = 60.0  # seconds beyond -T that connecting may take; many ranks connect slowly
SENDRECV_PEERS = 2  # the rank before and the one after
SHORTEST_MESSAGE = 16  # bytes: pingpong's replies, for all sizes

COUNTED = "nvl, rdma, ip: GB/s by counters, of the busiest GPU and hosts, in calls after the timed ones"

SPLIT_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "AND": operator.and_,
    "&": operator.and_,
    "OR": operator.or_,
    "|": operator.or_,
    "MOD": operator.mod,
    "%": operator.mod,
    "DIV": operator.floordiv,
    "/": operator.floordiv,
}

Wire = Callable[[float, float], tuple[float | None, float | None]]


def no_wire_rate(algbw: float, busbw: float) -> tuple[float | None, float | None]:
    return None, None


# A GPU that was idle, as between two sizes, may pause in the first half of a millisecond of work, for a
# hundred microseconds and more. With `steady`, the untimed call of sizes up to so many bytes is repeated for
# so many seconds.
STEADY_BYTES, STEADY_SECONDS = 1 << 20, 2e-3
REPEATED = "untimed calls for 2 ms before each size up to 1 MiB (--no-steady: one call)"


@dataclass
class Bench:
    """State that all sizes of one run share.

    everyone: the ranks to average over, which wait for each other; nccl-tests' MPI_COMM_WORLD. world_ranks:
    their ranks in the world. colors: their group numbers. group: this rank's collectives, with the buffers
    send and recv. progress: of this rank, for the watchdog. watched: there is a watchdog. detail: take the
    time before each call. steady: repeat the untimed call. show_tuning: observe what the library
    chooses. wires: count bytes on wires. offset: seconds that this rank's clock is ahead of rank 0's. wire:
    from algbw and busbw, GB/s on the limiting link and its percentage of nominal. nominal: GB/s of that link.
    checks: number done so far. failures: number of them that found wrong data.
    """

    world: World
    everyone: Control
    world_ranks: Sequence[int]
    colors: Sequence[int]
    group: Collectives
    settings: SweepSettings
    operation: CollectiveSpec
    traffic: Traffic
    send: Buffer
    recv: Buffer
    progress: MeasurementProgress
    watched: bool = False
    detail: bool = False
    steady: bool = False
    show_tuning: bool = False
    wires: bool = False
    offset: float = 0.0
    wire: Wire = no_wire_rate
    nominal: float | None = None
    checks: int = 0
    failures: int = 0

    def counts(self, size: int, datatype: Datatype) -> Counts:
        return self.operation.counts(size // datatype.itemsize, datatype, self.group.size, self.traffic)


@dataclass(frozen=True)
class Point:
    """The arguments of one measurement. elements: of the requested size, before rounding."""

    counts: Counts
    datatype: Datatype
    reduction: str
    root: int
    in_place: bool
    elements: int

    @property
    def bytes(self) -> int:
        """Bytes of the larger of input and result: the size column."""
        return max(self.counts.send, self.counts.recv) * self.datatype.itemsize


@dataclass
class Session:
    """A Bench, and what is printed before and after its rows.

    reduced: maxbytes if memory holds less than was requested, else None.
    memory: GPU memory used so far (-M); collective.
    """

    bench: Bench
    header: Header
    reduced: int | None = None
    memory: Callable[[], GpuMemoryUse | None] = lambda: None


@contextmanager
def opened(
    world: World,
    everyone: Control,
    options: BenchOptions,
    name: str,
    progress: MeasurementProgress,
    colors: Sequence[int],
    tuning: NcclTuning | None = None,
    transport: Transport | None = None,
    at_once: int | None = None,
) -> Iterator[Session]:
    """Open a session for operation `name` and close it at the end; collective over `everyone`.

    colors: each rank's group number. tuning: instead of the environment's. transport: None for the
    default. at_once: number of sessions that share the memory, each in a stream of its own; None for one
    in the main stream. Raises UserError, on every rank, if the options cannot be measured here.
    """
    operation = SPECS[name]
    check_device(world, options.settings, transport)
    check_ranks(operation, options.settings, colors)
    settings, reduced = within_memory(world, everyone, options.settings, at_once or 1)
    ranks = colors.count(colors[everyone.rank])
    progress.begin(f"opening {name}", "connecting the ranks")
    progress.grace = CONNECTING
    before = world.backend.free_memory() if settings.memory else 0
    members = everyone.split(colors[everyone.rank])
    connect = partial(
        world.collectives,
        members,
        cta_policy=settings.cta_policy,
        peers=SENDRECV_PEERS if name == "sendrecv" else None,
        stream="null" if settings.stream_null else "main" if at_once is None else "own",
        tuning=tuning,
        transport=transport,
    )
    group = collective_call(everyone, connect, world.here, names_rank=True)
    progress.abort = group.abort
    settings = supported(everyone, world, settings, group.library)
    connected = world.backend.free_memory() if settings.memory else 0
    try:
        traffic = traffic_of(options, ranks, name, settings)
        # 8: the largest element, for -d all
        nbytes = max(settings.maxbytes, SHORTEST_MESSAGE) + 8 * settings.unalign
        send, recv = group.allocate(nbytes), group.allocate(nbytes + GUARD)
        if settings.local_register:
            for buffer in (send, recv):
                group.register(buffer, settings.local_register)
        allocated = world.backend.free_memory() if settings.memory else 0
        offset = clock_offsets(everyone)[everyone.rank].offset if options.detail else 0.0
        bench = Bench(
            world, everyone, everyone.allgather(world.rank), colors, group, settings, operation, traffic,
            send, recv, progress, watched=settings.timeout > 0, detail=options.detail,
            steady=options.steady, show_tuning=options.show_tuning, wires=options.wires, offset=offset,
        )  # fmt: skip
        assumptions: tuple[str, ...] = ()
        if options.wire:
            bench.wire, bench.nominal, assumptions = limiting_link(world, everyone, bench, options.link_rate)

        if options.show_tuning:
            assumptions += source_of_choices(group)

        if options.wires:
            assumptions += (COUNTED,)

        if options.steady and settings.minbytes <= STEADY_BYTES:
            assumptions += (REPEATED,)

        def used() -> GpuMemoryUse | None:
            if not settings.memory:
                return None
            spent = (before - connected, connected - allocated, allocated - world.backend.free_memory())
            return GpuMemoryUse(*(max(column) for column in zip(*everyone.allgather(spent), strict=True)))

        progress.grace = 0.0
        yield Session(bench, header(everyone, world, bench, assumptions), reduced, used)
    finally:
        progress.begin(f"closing {name}")
    group.close()
    group.control.close()


def source_of_choices(group: Collectives) -> tuple[str, ...]:
    """Return a sentence about the columns of --show-tuning. Raises UserError if they would cost a log.

    Collective.
    """
    taken = environment().get("NCCL_DEBUG_FILE")
    if any(group.control.allgather(bool(taken) and group.library > 0)):
        raise UserError(
            "--show-tuning reads NCCL's log, and NCCL would overwrite the file of NCCL_DEBUG_FILE",
            got=f"NCCL_DEBUG_FILE={taken}",
            hint="without NCCL_DEBUG_FILE, or without --show-tuning",
            everywhere=True,
        )
    with group.observed() if group.rank == 0 else nullcontext() as found:
        pass
    if group.control.broadcast(found is not None):
        return ("algorithm, protocol, channels: from NCCL's log, of a call after the timed ones",)
    return (f"algorithm, protocol, channels: not reported by {group.label}",)


def header(everyone: Control, world: World, bench: Bench, assumptions: tuple[str, ...]) -> Header:
    device = world.here.device
    mine = RankDevice(
        everyone.rank,
        bench.colors[everyone.rank],
        world.here.pid,
        world.here.host.partition(".")[0],
        device.index if device.kind == "cuda" else world.here.local,
        device.bus_id.lower().removesuffix(".0") or "0000:00:00",
        device.name,
    )
    return Header(
        bench.operation.program, bench.group.library, bench.group.label, tuple(everyone.allgather(mine)),
        assumptions,
    )  # fmt: skip


def within_memory(
    world: World, everyone: Control, settings: SweepSettings, share: int = 1
) -> tuple[SweepSettings, int | None]:
    """Limit maxbytes to what memory holds; returns the settings, and that size if it is less than requested.

    On GPUs nccl-tests' rule: 1 GiB for each 16 GiB installed (at most 4) and one more stay free; the rest
    holds three buffers, or two without checks, of each of `share` sessions. On CPUs the available memory,
    shared by the host's ranks, holds five: two buffers, two scratch buffers, and one stays free. Raises
    UserError if not even the smallest size fits.
    """
    device = world.here.device
    if device.kind == "cuda":
        reserve = min(-(-device.memory // (16 * GIB)) * GIB, 4 * GIB) + GIB
        fits = (device.memory - reserve) // (3 if settings.check else 2)
    else:
        local = sum(rank.host_id == world.here.host_id for rank in world.ranks)
        fits = world.backend.free_memory() // 5 // local
    fits = max(min(everyone.allgather(fits)), 0) // share
    if settings.maxbytes <= fits:
        return settings, None
    if settings.minbytes > fits:
        raise UserError(
            "the smallest size does not fit into memory",
            got=f"-b {settings.minbytes} bytes",
            expected=f"at most {fits} ({fits / GIB:.4g} GiB) for each buffer",
            hint=f"-b {max(fits // 2, 1)} -e {fits}" if fits else None,
            everywhere=True,
        )
    return replace(settings, maxbytes=fits), fits


def supported(everyone: Control, world: World, settings: SweepSettings, library: int) -> SweepSettings:
    """Leave out the types that these GPUs or this NCCL lack (-d all), as nccl-tests does.

    library: NCCL's version, such as 22809; 0 without NCCL. Raises UserError if nothing is left.
    """
    device = world.here.device
    if device.kind != "cuda" or not any(name.startswith("f8") for name in settings.datatypes):
        return settings
    capability = min(everyone.allgather(device.compute_capability))
    if capability >= FLOAT8_CAPABILITY and library >= FLOAT8_LIBRARY:
        return settings
    rest = tuple(name for name in settings.datatypes if not name.startswith("f8"))
    if not rest:
        raise UserError(
            "8-bit floats are not supported here",
            got=f"compute capability {capability / 10:g}, NCCL {library // 10000}.{library // 100 % 100}",
            expected="9.0 or later, NCCL 2.24 or later",
            everywhere=True,
        )
    return replace(settings, datatypes=rest)


def check_device(world: World, settings: SweepSettings, transport: Transport | None) -> None:
    """Raise UserError for options that need NCCL if a rank measures host memory, or MPI."""
    given = {
        "-G": settings.cudagraph,
        "-M": settings.memory,
        "-R": settings.local_register,
        "-x": settings.cta_policy is not None,
        "-y": settings.stream_null,
    }
    words = [letter for letter, value in given.items() if value]
    words = [letter for letter in words if letter != "-M" or transport != "mpi"]
    if words and transport == "mpi":
        raise UserError(
            f"{', '.join(words)}: needs NCCL",
            got="--transport mpi",
            hint=f"without {', '.join(words)}, or with --transport nccl",
            everywhere=True,
        )
    if words:
        listed = ", ".join(words)
        check_gpus(world, f"{listed}: needs NCCL and GPUs", f"without {listed}, or with --device cuda")


def check_gpus(world: World, sentence: str, hint: str) -> None:
    """Raise UserError with this sentence if a rank measures host memory."""
    if any(rank.device.kind != "cuda" for rank in world.ranks):
        raise UserError(sentence, got="ranks that measure host memory", hint=hint, everywhere=True)


def check_ranks(operation: CollectiveSpec, settings: SweepSettings, colors: Sequence[int]) -> None:
    """Raise UserError if the operation cannot run on this number of ranks. colors: each rank's group."""
    sizes = {colors.count(color) for color in colors}
    ranks = min(sizes)
    if operation.name == "hypercube" and not fits_hypercube(colors):
        size = next(one for one in sizes if one & (one - 1))
        raise UserError(
            "hypercube pairs ranks whose numbers differ in one bit",
            got=f"{size} ranks",
            expected="a power of two",
            hint=f"-n {1 << (size.bit_length() - 1)}",
            everywhere=True,
        )
    if operation.rooted and settings.root >= ranks:
        raise UserError(
            "there is no such root",
            got=f"-r {settings.root}",
            expected=f"at most {ranks - 1}",
            everywhere=True,
        )
    if operation.rooted and settings.root == -1 and len(sizes) > 1:
        raise UserError(
            "-r -1 uses the ranks of all groups in turn and needs groups of one size",
            got=f"groups of {' and '.join(map(str, sorted(sizes)))} ranks",
            everywhere=True,
        )


def fits_hypercube(colors: Sequence[int]) -> bool:
    return not any(size & (size - 1) for size in map(colors.count, colors))


def color_of(rank: int, split: str | None, mask: str | None) -> int:
    """Return the group of a rank by NCCL_TESTS_SPLIT_MASK (hexadecimal, rank AND mask) or NCCL_TESTS_SPLIT.

    NCCL_TESTS_SPLIT is AND, OR, MOD or DIV (or & | % /) with a number: decimal, 0x or 0b. Raises UserError.
    """
    if mask:
        try:
            return rank & int(mask, 16)
        except ValueError as reason:
            raise UserError("the split mask is not a hexadecimal number", got=repr(mask)) from reason
    if not split:
        return 0
    match = re.fullmatch(r"\s*(AND|OR|MOD|DIV|[&|%/])\s*(0x[0-9a-f]+|0b[01]+|\d+)\s*", split, re.IGNORECASE)
    number = int(match[2], 0 if match[2][:1] == "0" and len(match[2]) > 2 else 10) if match else 0
    if match is None or (number == 0 and match[1].upper() in ("MOD", "%", "DIV", "/")):
        raise UserError(
            "the split does not parse",
            got=repr(split),
            expected="AND, OR, MOD or DIV and a number, such as MOD8",
        )
    return SPLIT_OPERATORS[match[1].upper()](rank, number)


def colors_of(world: World, options: BenchOptions) -> list[int]:
    return [color_of(rank, options.split, options.split_mask) for rank in range(world.size)]


def traffic_of(options: BenchOptions, ranks: int, name: str, settings: SweepSettings) -> Traffic:
    """Return alltoallv's traffic. Raises UserError, the same on every rank that can read the matrix."""
    spread = min(max(options.spread, 0.0), 1.0)
    if name == "alltoallv" and options.experts is not None:
        if options.experts < ranks:
            raise UserError(
                "a mixture of experts has at least one expert per rank",
                got=f"--experts {options.experts} on {ranks} ranks",
                hint=f"--experts {8 * ranks}",
                everywhere=True,
            )
        return Traffic(shares=expert_shares(options.experts, options.skew, ranks))
    if name != "alltoallv" or options.matrix is None:
        return Traffic(spread)
    matrix = read_matrix(options.matrix, max(options.matrix_scale, 0.0), ranks)
    rows = [row[:ranks] for row in matrix[:ranks]]
    most = max(*(sum(row) for row in rows), *(sum(column) for column in zip(*rows, strict=True)))
    if settings.minbytes != settings.maxbytes or settings.maxbytes < most:
        raise UserError(
            "a traffic matrix determines the size",
            got=f"-b {settings.minbytes} -e {settings.maxbytes}",
            expected=f"-b and -e equal, and at least the busiest rank's {most} bytes",
        )
    return Traffic(spread, matrix)


def limiting_link(
    world: World, everyone: Control, bench: Bench, stated: float | None
) -> tuple[Wire, float | None, tuple[str, ...]]:
    """Return the function `Bench.wire`, the link's nominal GB/s, and the assumptions of both; collective.

    Unknown with MPI, which chooses the path. stated: the nominal rate of --link-rate, GB/s; None
    to use what NVML and sysfs report.
    """
    device = world.here.device
    if device.kind != "cuda" or not bench.group.library:
        return no_wire_rate, None, ()
    mine = gpu_links(device.uuid)
    nics = network_rate(links.nics(), len([r for r in world.ranks if r.host_id == world.here.host_id]))
    gathered = everyone.allgather((world.here.host_id, mine, nics, device.compute_capability))
    color = bench.colors[0]  # the rows are those of rank 0's group
    members = [one for one, other in zip(gathered, bench.colors, strict=True) if other == color]
    hosts = len({host for host, *_ in members})
    joined = all(links.nvlinks_active for _, links, *_ in members)
    layout = RankLayout(len(members), hosts, "NVLink" if joined else "PCIe")
    possible = joined and min(capability for *_, capability in members) >= NVLS_CAPABILITY
    assumed = assumed_algorithm(bench.operation.name, layout, environment(), possible)
    readings = [
        network if hosts > 1 else links.nvlink if joined else links.pcie for _, links, network, _ in members
    ]
    rates = [reading.rate for reading in readings if reading.rate is not None]
    nominal, source = stated, "--link-rate"
    if stated is None:
        # A link of unknown rate may be the limiting one.
        nominal = min(rates) if len(rates) == len(readings) else None
        source = next((reading.source for reading in readings if reading.rate is None), readings[0].source)
    text = "unknown" if nominal is None else f"{nominal:g} GB/s"
    sample = wire_rate(bench.operation.name, layout, assumed, 1.0, 1.0)
    sentences = (f"wire rate of {sample.assumption}", f"nominal rate of that link: {text} ({source})")

    def wire(algbw: float, busbw: float) -> tuple[float | None, float | None]:
        rate = wire_rate(bench.operation.name, layout, assumed, algbw, busbw).rate
        return rate, percent(rate, nominal)

    return wire, nominal, sentences

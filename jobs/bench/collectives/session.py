"""One operation's measurement opened and closed: groups, buffers, the header that tells what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import runner
from jobs.bench.collectives.config import Asked, Settings
from jobs.bench.collectives.groups import color_of
from jobs.bench.collectives.results import Header, Memory, Seat
from jobs.bench.collectives.specs import OPERATIONS, Operation, Shape
from jobs.bench.collectives.traffic import Traffic, read_matrix
from jobs.measure.link_rates import Layout, assumed_algorithm, percent, wire_rate
from runner import Buffer, Collectives, Control, Datatype, Progress, World, clock_offsets

GIB = 1 << 30
FLOAT8_CAPABILITY = 90  # Hopper
FLOAT8_LIBRARY = 22400
NVLS_CAPABILITY = 90  # Hopper
CONNECTING = 60.0  # seconds more than -T says that the ranks may take to connect, which many do slowly
SENDRECV_PEERS = 2  # the rank before and the one after
SHORTEST_MESSAGE = 16  # bytes: pingpong's answers, whatever the sizes


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


@dataclass
class Session:
    """A Bench, and what is printed round it. reduced: maxbytes where memory allowed less than was asked."""

    bench: Bench
    header: Header
    reduced: int | None = None
    memory: Callable[[], Memory | None] = lambda: None


@contextmanager
def opened(
    world: World,
    everyone: Control,
    asked: Asked,
    name: str,
    trail: runner.Progress,
    colors: Sequence[int],
) -> Iterator[Session]:
    """A session for operation `name`, closed in order at the end; collective over `everyone`.

    Raises UserError, on every rank alike, for what cannot be measured here.
    """
    operation = OPERATIONS[name]
    check_device(world, asked.settings)
    check_ranks(operation, asked.settings, colors)
    settings, reduced = within_memory(world, everyone, asked.settings)
    ranks = colors.count(colors[everyone.rank])
    trail.begin(f"opening {name}", "connecting the ranks")
    trail.grace = CONNECTING
    before = world.backend.free_memory() if settings.memory else 0
    group = world.collectives(
        everyone.split(colors[everyone.rank]),
        cta_policy=settings.cta_policy,
        peers=SENDRECV_PEERS if name == "sendrecv" else None,
        null_stream=settings.stream_null,
    )
    trail.abort = group.abort
    settings = offered(everyone, world, settings, group.library)
    connected = world.backend.free_memory() if settings.memory else 0
    try:
        traffic = traffic_of(asked, ranks, name, settings)
        # 8: the largest element, for -d all
        nbytes = max(settings.maxbytes, SHORTEST_MESSAGE) + 8 * settings.unalign
        send, recv = group.allocate(nbytes), group.allocate(nbytes)
        if settings.local_register:
            for buffer in (send, recv):
                group.register(buffer, settings.local_register)
        allocated = world.backend.free_memory() if settings.memory else 0
        offset = clock_offsets(everyone)[everyone.rank].offset if asked.detail else 0.0
        bench = Bench(
            world, everyone, everyone.allgather(world.rank), colors, group, settings, operation, traffic,
            send, recv, trail, watched=settings.timeout > 0, detail=asked.detail, offset=offset,
        )  # fmt: skip
        assumptions: tuple[str, ...] = ()
        if asked.wire:
            bench.wire, bench.nominal, assumptions = wires(world, everyone, bench, asked.link_rate)

        def used() -> Memory | None:
            if not settings.memory:
                return None
            spent = (before - connected, connected - allocated, allocated - world.backend.free_memory())
            return Memory(*(max(column) for column in zip(*everyone.allgather(spent), strict=True)))

        trail.grace = 0.0
        yield Session(bench, header(everyone, world, bench, assumptions), reduced, used)
    finally:
        trail.begin(f"closing {name}")
    group.close()
    group.control.close()


def header(everyone: Control, world: World, bench: Bench, assumptions: tuple[str, ...]) -> Header:
    device = world.here.device
    seat = Seat(
        everyone.rank,
        bench.colors[everyone.rank],
        world.here.pid,
        world.here.host.partition(".")[0],
        device.index if device.kind == "cuda" else world.here.local,
        device.bus_id.lower().removesuffix(".0") or "0000:00:00",
        device.name,
    )
    return Header(
        bench.operation.program, bench.group.library, bench.group.label, tuple(everyone.allgather(seat)),
        assumptions,
    )  # fmt: skip


def within_memory(world: World, everyone: Control, settings: Settings) -> tuple[Settings, int | None]:
    """The settings with maxbytes as large as memory holds, and that size where it is less than asked.

    On GPUs nccl-tests' rule: 1 GiB for each 16 installed (at most 4) and one more stay free, the rest holds
    three buffers, two without checks. On CPUs: what is available, shared by the host's ranks, holds five: two
    buffers, two for scratch, and one stays free. Raises UserError where not even the smallest size fits.
    """
    device = world.here.device
    if device.kind == "cuda":
        reserve = min(-(-device.memory // (16 * GIB)) * GIB, 4 * GIB) + GIB
        fits = (device.memory - reserve) // (3 if settings.check else 2)
    else:
        local = sum(rank.host_id == world.here.host_id for rank in world.ranks)
        fits = world.backend.free_memory() // 5 // local
    fits = max(min(everyone.allgather(fits)), 0)
    if settings.maxbytes <= fits:
        return settings, None
    if settings.minbytes > fits:
        raise runner.UserError(
            "the smallest size does not fit the memory",
            got=f"-b {settings.minbytes} bytes",
            expected=f"at most {fits} ({fits / GIB:.4g} GiB) for each of its buffers",
            hint=f"-b {max(fits // 2, 1)} -e {fits}" if fits else None,
            everywhere=True,
        )
    return replace(settings, maxbytes=fits), fits


def offered(everyone: Control, world: World, settings: Settings, library: int) -> Settings:
    """The settings without the types that these GPUs or this NCCL lack (-d all), as nccl-tests filters them.

    library: NCCL's version, such as 22809; 0 without. Raises UserError where one was asked for by name.
    """
    device = world.here.device
    if device.kind != "cuda" or not any(name.startswith("f8") for name in settings.datatypes):
        return settings
    capability = min(everyone.allgather(device.compute_capability))
    if capability >= FLOAT8_CAPABILITY and library >= FLOAT8_LIBRARY:
        return settings
    rest = tuple(name for name in settings.datatypes if not name.startswith("f8"))
    if not rest:
        raise runner.UserError(
            "there are no 8-bit floats here",
            got=f"compute capability {capability / 10:g}, NCCL {library // 10000}.{library // 100 % 100}",
            expected="9.0 or later, NCCL 2.24 or later",
            everywhere=True,
        )
    return replace(settings, datatypes=rest)


def check_device(world: World, settings: Settings) -> None:
    """Refuse what only NCCL and GPUs have, where a rank measures host memory."""
    asked = {
        "-G": settings.cudagraph,
        "-M": settings.memory,
        "-R": settings.local_register,
        "-x": settings.cta_policy is not None,
        "-y": settings.stream_null,
    }
    words = [letter for letter, value in asked.items() if value]
    if words and any(rank.device.kind != "cuda" for rank in world.ranks):
        raise runner.UserError(
            f"{', '.join(words)}: a matter of NCCL and GPUs",
            got="ranks that measure host memory",
            hint=f"without {', '.join(words)}, or with --device cuda",
            everywhere=True,
        )


def check_ranks(operation: Operation, settings: Settings, colors: Sequence[int]) -> None:
    """Refuse what does not go with so many ranks. colors: each rank's group."""
    sizes = {colors.count(color) for color in colors}
    ranks = min(sizes)
    if operation.name == "hypercube" and not fits_hypercube(colors):
        odd = next(size for size in sizes if size & (size - 1))
        raise runner.UserError(
            "hypercube pairs ranks whose numbers differ in one bit",
            got=f"{odd} ranks",
            expected="a power of two",
            hint=f"-n {1 << (odd.bit_length() - 1)}",
            everywhere=True,
        )
    if operation.rooted and settings.root >= ranks:
        raise runner.UserError(
            "there is no such root",
            got=f"-r {settings.root}",
            expected=f"at most {ranks - 1}",
            everywhere=True,
        )
    if operation.rooted and settings.root == -1 and len(sizes) > 1:
        raise runner.UserError(
            "-r -1 takes the groups' ranks in turn, as many in each",
            got=f"groups of {' and '.join(map(str, sorted(sizes)))} ranks",
            everywhere=True,
        )


def fits_hypercube(colors: Sequence[int]) -> bool:
    return not any(size & (size - 1) for size in map(colors.count, colors))


def colors_of(world: World, asked: Asked) -> list[int]:
    return [color_of(rank, asked.split, asked.split_mask) for rank in range(world.size)]


def traffic_of(asked: Asked, ranks: int, name: str, settings: Settings) -> Traffic:
    """alltoallv's traffic. Raises UserError, alike on every rank that can read the matrix."""
    spread = min(max(asked.spread, 0.0), 1.0)
    if name != "alltoallv" or asked.matrix is None:
        return Traffic(spread)
    matrix = read_matrix(asked.matrix, max(asked.matrix_scale, 0.0), ranks)
    rows = [row[:ranks] for row in matrix[:ranks]]
    most = max(*(sum(row) for row in rows), *(sum(column) for column in zip(*rows, strict=True)))
    if settings.minbytes != settings.maxbytes or settings.maxbytes < most:
        raise runner.UserError(
            "a traffic matrix sets the size itself",
            got=f"-b {settings.minbytes} -e {settings.maxbytes}",
            expected=f"-b and -e alike, and at least the busiest rank's {most} bytes",
        )
    return Traffic(spread, matrix)


def wires(
    world: World, everyone: Control, bench: Bench, told: float | None
) -> tuple[Wire, float | None, tuple[str, ...]]:
    """GB/s on the tight link and its percentage of nominal, from algbw and busbw; nominal; what they rest on.

    Known for GPUs only: MPI's way through host memory is its own. told: the nominal rate that somebody
    states, GB/s; None for what NVML and sysfs say. Collective over `everyone`.
    """
    device = world.here.device
    if device.kind != "cuda":
        return unknown, None, ()
    mine = runner.gpu_links(device.uuid)
    nics = runner.network_rate(
        runner.nics(), len([r for r in world.ranks if r.host_id == world.here.host_id])
    )
    gathered = everyone.allgather((world.here.host_id, mine, nics, device.compute_capability))
    color = bench.colors[0]  # the rows are those of rank 0's group
    members = [one for one, other in zip(gathered, bench.colors, strict=True) if other == color]
    hosts = len({host for host, *_ in members})
    joined = all(links.nvlinks_active for _, links, *_ in members)
    layout = Layout(len(members), hosts, "NVLink" if joined else "PCIe")
    possible = joined and min(capability for *_, capability in members) >= NVLS_CAPABILITY
    assumed = assumed_algorithm(bench.operation.name, layout, runner.environment(), possible)
    readings = [
        network if hosts > 1 else links.nvlink if joined else links.pcie for _, links, network, _ in members
    ]
    rates = [reading.rate for reading in readings if reading.rate is not None]
    nominal, source = told, "--link-rate"
    if told is None:
        # A link that does not tell its rate may be the tight one.
        nominal = min(rates) if len(rates) == len(readings) else None
        source = next((reading.source for reading in readings if reading.rate is None), readings[0].source)
    stated = "not known" if nominal is None else f"{nominal:g} GB/s"
    sample = wire_rate(bench.operation.name, layout, assumed, 1.0, 1.0)
    sentences = (f"wire rate of {sample.assumption}", f"nominal rate of that link: {stated} ({source})")

    def wire(algbw: float, busbw: float) -> tuple[float | None, float | None]:
        rate = wire_rate(bench.operation.name, layout, assumed, algbw, busbw).rate
        return rate, percent(rate, nominal)

    return wire, nominal, sentences

"""Measure latency, one-way and two-way bandwidth between two ranks.

Latency is half of a round trip with one message in flight. One-way: the iterations' messages back to back,
then a short reply to the last. Two-way: both send at the same time. nccl-tests has none of these; OSU's
latency, bw and bibw measure the same over MPI.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrun import World
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.config import BenchOptions
from meshrun.jobs.bench.collectives.output import nccl_tests_text
from meshrun.jobs.bench.collectives.output.nccl_tests_text import cells, figure, titles
from meshrun.jobs.bench.collectives.output.screen import Screen
from meshrun.jobs.bench.collectives.results import Header
from meshrun.jobs.bench.collectives.session import Bench
from meshrun.jobs.measure.check import fill, poison, verify
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.record_file import open_record
from meshrun.jobs.measure.timers import host_seconds
from meshrun.jobs.measure.watchdog import watching
from meshrun.runner.comm.collectives.api import DATATYPES, Call, Datatype, Pointer
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler

COLUMNS = (  # title, unit, width
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 8),
    ("from", "", 6),
    ("to", "", 6),
    ("latency", "(us)", 8),
    ("one-way", "(GB/s)", 8),
    ("two-way", "(GB/s)", 8),
    ("#wrong", "", 6),
)


@dataclass(frozen=True)
class PingPongResult:
    """One pair and size. latency: seconds, one way. one_way, two_way: GB/s; two_way counts both directions.

    wrong: elements, of both directions; None if not checked. finding: a sentence about them.
    """

    size: int
    count: int
    datatype: str
    source: int
    target: int
    latency: float
    one_way: float
    two_way: float
    wrong: int | None
    finding: str = ""


def run(world: World, handler: FailureHandler, options: BenchOptions, cli_context: Any) -> dict[str, Any]:
    """Measure every pair and size; returns the completion record."""
    options = world.control.broadcast(options)
    screen = Screen(world.rank == 0, options, cli_context.colour, cli_context.columns)
    pairs = parse_pairs(options.pairs, world.size)
    found: list[PingPongResult] = []
    with (
        watching(world, handler, options.settings.timeout) as progress,
        session.opened(world, world.control, options, "sendrecv", progress, [0] * world.size) as opened,
    ):
        bench = opened.bench
        record_file = open_record(world, options.output_file, screen.line)
        screen.line(_header(options, opened.header))
        for source, target in pairs:
            for name in bench.settings.datatypes:
                for size in bench.settings.sizes():
                    exchange = _measure(bench, DATATYPES[name], size, source, target)
                    found.append(exchange)
                    screen.line(_row(exchange))
        document = {
            "program": "pingpong",
            "backend": opened.header.backend,
            "ranks": [asdict(one) for one in opened.header.ranks],
            "results": [asdict(one) for one in found],
        }
        record_file.write(lambda: json.dumps(document) + "\n", last=True)
        record_file.close()
    wrong = [one for one in found if one.wrong]
    screen.line(f"# Out of bounds values : {len(wrong)} {'FAILED' if wrong else 'OK'}\n#\n")
    if wrong:
        raise WrongResults("pingpong: " + "; ".join(one.finding for one in wrong[:4]), everywhere=True)
    return {"command": "bench", "operations": ["pingpong"], "ranks": world.size}


def parse_pairs(text: str, ranks: int) -> list[tuple[int, int]]:
    """Parse pairs: "0-3,1-2", "all", or "ends" (the first and the last rank). Raises UserError."""
    if ranks < 2:
        raise UserError(
            "pingpong needs two ranks", got="1", hint="meshrun -n 2 bench pingpong", everywhere=True
        )
    if text == "all":
        return [(one, other) for one in range(ranks) for other in range(one + 1, ranks)]
    if text == "ends":
        return [(0, ranks - 1)]
    try:
        pairs = [tuple(int(end) for end in pair.split("-")) for pair in text.split(",")]
        good = all(len(pair) == 2 and len({*pair}) == 2 and max(pair) < ranks for pair in pairs)
    except ValueError:
        good = False
    if not good:
        raise UserError(
            "--pairs does not parse",
            got=repr(text),
            expected=f"such as 0-1,0-{ranks - 1}: ranks below {ranks}",
            everywhere=True,
        )
    return [(pair[0], pair[1]) for pair in pairs]


def _measure(bench: Bench, datatype: Datatype, size: int, source: int, target: int) -> PingPongResult:
    rank, settings = bench.group.rank, bench.settings
    count = size // datatype.itemsize
    nbytes = count * datatype.itemsize
    label = f"pingpong {datatype.name}, {nbytes} B, ranks {source} and {target}"
    bench.checks += 1
    timings, wrong, finding = (0.0, 0.0, 0.0), 0, ""
    bench.progress.begin(label, "waiting for other pairs")
    if rank in (source, target):
        peer = target if rank == source else source
        start = Pointer(bench.send), Pointer(bench.recv)
        whole = Call("sendrecv", *start, count, datatype)
        fill(
            whole.send.bytes(nbytes),
            datatype,
            [Segment(0, count, Copied(2 * bench.checks + (rank == target), 0), rank)],
        )
        poison(whole.recv.bytes(nbytes))
        bench.world.backend.synchronize()
        timings = _timings(bench, whole, peer, leads=rank == source)
        if settings.check:
            wrong, finding = _check(bench, whole, nbytes, peer, rank == target)
    bench.progress.done("waiting for other pairs")
    everyone = bench.everyone.allgather((timings, wrong, finding))
    round_trip, one_way, two_way = everyone[source][0]
    rate = nbytes / 1e9
    return PingPongResult(
        nbytes, count, datatype.name, source, target, round_trip / 2,
        rate / one_way if one_way else 0.0, 2 * rate / two_way if two_way else 0.0,
        sum(one[1] for one in everyone) if settings.check else None,
        "; ".join(one[2] for one in everyone if one[2]),
    )  # fmt: skip


def _timings(bench: Bench, call: Call, peer: int, leads: bool) -> tuple[float, float, float]:
    """Measure seconds of a round trip, of one message of a sequence, and of an exchange."""
    group, iterations = bench.group, bench.settings.iters
    reply = Call(
        "sendrecv", call.send, call.recv, session.SHORTEST_MESSAGE // call.datatype.itemsize, call.datatype
    )
    send, receive = group.message(call, send_to=peer), group.message(call, receive_from=peer)
    both = group.message(call, send_to=peer, receive_from=peer)
    replying, awaiting = group.message(reply, send_to=peer), group.message(reply, receive_from=peer)
    there_and_back = [send, receive] if leads else [receive, send]
    stream = [send] * iterations + [awaiting] if leads else [receive] * iterations + [replying]

    def timed(calls: Sequence[Callable[[], object]]) -> float:
        group.issue([both] if bench.settings.warmup_iters else [])  # both in step
        group.wait()
        bench.progress.enter(1)
        return host_seconds(lambda: group.issue(calls), wait=group.wait) / iterations

    group.issue(there_and_back * bench.settings.warmup_iters)
    group.wait()
    return (
        statistics.median(timed(there_and_back * iterations) for _ in range(3)),
        statistics.median(timed(stream) for _ in range(3)),
        statistics.median(timed([both] * iterations) for _ in range(3)),
    )


def _check(bench: Bench, call: Call, nbytes: int, peer: int, second: bool) -> tuple[int, str]:
    """Check one exchange into a poisoned buffer; returns the number of wrong elements and a sentence."""
    poison(call.recv.bytes(nbytes))
    bench.world.backend.synchronize()
    bench.group.issue([bench.group.message(call, send_to=peer, receive_from=peer)])
    bench.group.wait()
    seed = 2 * bench.checks + (not second)
    found = verify(call.recv.bytes(nbytes), call.datatype, [Segment(0, call.count, Copied(seed, 0), peer)])
    if found is None:
        return 0, ""
    return found.count, (
        f"[{bench.world.here}] {found.count} elements of rank {peer}'s wrong, first at {found.offset}: "
        f"got {found.got}, expected {found.expected}"
    )


def _header(options: BenchOptions, header: Header) -> str:
    ranks = [line for line in nccl_tests_text.header(options.settings, header).splitlines() if "Rank" in line]
    lines = ["# pingpong: latency is half a round trip", *ranks, f"# backend: {header.backend}"]
    return "\n".join([*lines, *titles(COLUMNS)]) + "\n"


def _row(one: PingPongResult) -> str:
    figures = [figure(value, 8) for value in (one.latency * 1e6, one.one_way, one.two_way)]
    wrong = "N/A" if one.wrong is None else str(one.wrong)
    places = str(one.source), str(one.target)
    return cells(COLUMNS, [str(one.size), str(one.count), one.datatype, *places, *figures, wrong]) + "\n"

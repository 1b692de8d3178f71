"""`bench memory p2p` on ranks as threads: on host memory, and on GPUs made of NumPy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from made_box import MadeBox, MadeHost, Stream

from meshrun import World
from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.p2p import lesson as p2p
from meshrun.jobs.bench.lessons.p2p.lesson import PeerResults
from meshrun.jobs.bench.lessons.protocol import Context, Lesson
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import UserError
from meshrun.runner.system.links import GpuLinks, Reading

DIRECT = ("copy engine", "kernel stores", "kernel loads")
Damage = Callable[[Any, int, int], None]  # of (array, where the transfer begins in it, nbytes)


@dataclass
class Machine(MadeHost):
    """The host of all ranks, each with the GPU of its number.

    visible: the GPUs that a rank's process sees, all by default. unexported, unattached: ranks whose calls
    fail. damage: of a method's transfers, after they are done. acts: method, rank that did it, places of
    source and target.
    """

    visible: dict[int, list[int]] = field(default_factory=dict)
    unexported: set[int] = field(default_factory=set)
    unattached: set[int] = field(default_factory=set)
    damage: dict[str, Damage] = field(default_factory=dict)
    acts: list[tuple[str, int, str, str]] = field(default_factory=list)
    gates: list[int] = field(default_factory=list)  # the rank of each that was passed
    lock: threading.Lock = field(default_factory=threading.Lock)


class RankBox(MadeBox):
    """One rank's process."""

    host: Machine

    def __init__(self, machine: Machine, rank: int) -> None:
        super().__init__(machine, machine.visible.get(rank))
        self.rank = rank

    def release(self, memory: Memory) -> None:
        super().release(memory)
        assert not self.pulled_away, "released while a peer has it attached"

    def export(self, memory: Memory) -> bytes:
        if self.rank in self.host.unexported:
            raise RuntimeError("cudaErrorNotSupported: operation not supported\nmore lines")
        return super().export(memory)

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        """gpu: whose memory it is; it is attached for the current GPU."""
        if self.rank in self.host.unattached:
            raise RuntimeError("cudaErrorMapBufferObjectFailed: mapping of buffer object failed")
        assert self.host.exported[handle].place == f"GPU {self.numbers[gpu]}"
        with self.host.lock, self.on(gpu):
            return super().attach(handle, nbytes, gpu)

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: Stream) -> None:
        method = "copy engine" if source.kind == target.kind == "device" else "through host"
        self.queue(method, target.address, source.address, nbytes, stream)

    def queue(self, method: str, target: int, source: int, nbytes: int, stream: Stream) -> None:
        def act() -> float:
            seconds = self.carry(target, source, nbytes, stream)
            (to, at), (come, _) = self.find(target), self.find(source)
            self.host.damage.get(method, lambda *_: None)(to.array, at, nbytes)
            self.host.acts.append((method, self.rank, come.place, to.place))
            return seconds

        stream.queue.append(act)

    def load(self, file: str, instance: str) -> Callable[..., None]:
        assert (file, instance) in (("peer.cu", "peer_copy"), ("gate.cu", "gate"))
        return self.gate if instance == "gate" else self.peer

    def gate(self, grid: Any, block: Any, arguments: tuple[Any, ...], *, stream: Stream) -> None:
        latch = self.find(int(arguments[0]))[0].array[:8].view(np.uint32)

        def passed() -> float:
            assert latch[0], "waited for, and closed"
            self.host.gates.append(self.rank)
            return 0.0

        stream.queue.append(passed)

    def peer(self, grid: Any, block: Any, arguments: tuple[Any, ...], *, stream: Stream) -> None:
        assert all(type(argument) is np.uint64 for argument in arguments)
        assert 1 <= grid[0] <= 32
        source, target, nbytes = map(int, arguments)
        own = f"GPU {stream.number}"
        method = "kernel stores" if self.find(source)[0].place == own else "kernel loads"
        self.queue(method, target, source, nbytes, stream)


@pytest.fixture
def measured(on_ranks: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Lesson]]:
    """Return the lesson of every rank; on GPUs if `machine` is given."""
    mine = threading.local()

    def load(file: str, instance: str) -> Callable[..., None]:
        launch: Callable[..., None] = mine.box.load(file, instance)
        return launch

    monkeypatch.setattr(kernels, "load", load)

    def call(
        ranks: int, machine: Machine | None = None, hosts: Any = None, check: bool = True, **sizes: int
    ) -> list[Lesson]:
        words: dict[str, Any] = {"minbytes": 64, "maxbytes": 4099} | sizes

        def body(world: World) -> Lesson:
            if machine is None:
                return p2p.measure(Context(world, None, samples=1, check=check, **words))
            world.ranks = tuple(
                replace(rank, device=replace(rank.device, kind="cuda", uuid=f"GPU-{rank.number}"))
                for rank in world.ranks
            )
            box: Any = RankBox(machine, world.rank)
            mine.box = box
            gpu = box.numbers.index(world.rank)
            made = Context(world, box, gpu, samples=1, check=check, **words)
            result = p2p.measure(made)
            assert {block.place for block, _ in box.blocks.values()} <= {"host"}
            return result

        return on_ranks(ranks, body, hosts=hosts)

    return call


def methods_measured(lesson: Lesson) -> set[tuple[str, int, int]]:
    return {(one["method"], one["source"], one["target"]) for one in lesson.facts["transfers"]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_host_memory_between_all_pairs(measured: Any, ranks: int) -> None:
    lessons = measured(ranks)
    assert lessons[0].mismatches == ()
    assert methods_measured(lessons[0]) == {("threads", *pair) for pair in permutations(range(ranks), 2)}
    assert {one["bytes"] for one in lessons[0].facts["transfers"]} == {64, 256, 1024, 4096}
    assert [one["bytes"] for one in lessons[0].facts["copies_inside"]] == [64, 256, 1024, 4096]
    assert all(one["seconds"] > 0 for one in lessons[0].facts["transfers"])
    assert lessons[0].facts == lessons[-1].facts, "every rank has the same figures"


def test_every_method_between_gpus(measured: Any) -> None:
    machine = Machine(3)
    found = measured(3, machine)[0]
    assert found.mismatches == ()
    assert found.facts["not_measured"] == {}
    names = {*DIRECT, "threads", "through host"}
    assert methods_measured(found) == {
        (method, *pair) for method in names for pair in permutations(range(3), 2)
    }
    for method, actor, source, target in machine.acts:
        if method in DIRECT:
            assert source != target
            assert f"GPU {actor}" == (target if method == "kernel loads" else source)
            assert target != "host"
    text = show.text(found)
    assert "copy engine, 4 KiB" in text
    assert "the bandwidth through the host" in text


def test_direct_transfers_are_queued_before_their_time_begins(measured: Any) -> None:
    machine = Machine(2)
    measured(2, machine, check=False)
    # Both of the pair's ranks make theirs ready; then three methods of two pairs and four sizes, twice each.
    assert sorted(machine.gates) == [0] * 25 + [1] * 25
    direct = [one for one in machine.acts if one[0] in DIRECT]
    assert len(direct) == 3 * 2 * 2 * (1 + 4 * 16)


def test_methods_not_measured_are_reported(measured: Any) -> None:
    machine = Machine(3, visible={1: [1]}, peers=lambda gpu, other: (gpu, other) != (2, 0))
    found = measured(3, machine)[0]
    missing = found.facts["not_measured"]
    assert found.mismatches == ()
    assert missing["rank 1's process does not see rank 0's GPU"] == [
        ["kernel loads", 0, 1], ["copy engine", 1, 0], ["kernel stores", 1, 0]
    ]  # fmt: skip
    assert sorted(missing["rank 2's GPU has no peer access to rank 0's"]) == [
        ["copy engine", 2, 0], ["kernel loads", 0, 2], ["kernel stores", 2, 0]
    ]  # fmt: skip
    assert ("copy engine", 0, 1) in methods_measured(found)
    assert ("kernel loads", 0, 1) not in methods_measured(found)
    assert ("through host", 1, 0) in methods_measured(found)
    assert any(
        "Not measured: kernel loads, copy engine, kernel stores (0 to 1, 1 to 0)" in s
        for s in found.explanation
    )


@pytest.mark.parametrize("kind", ["unexported", "unattached"])
def test_a_rank_that_cannot_share_does_not_stop_the_others(measured: Any, kind: str) -> None:
    found = measured(3, Machine(3, **{kind: {1}}))[0]
    (_, others) = next(iter(found.facts["not_measured"].items()))
    assert all(1 in pair for _, *pair in others)
    reasons = " ".join(found.facts["not_measured"])
    assert "rank 1" in reasons
    assert "more lines" not in reasons
    assert {("copy engine", 0, 2), ("kernel loads", 2, 0), ("threads", 0, 1)} <= methods_measured(found)


def test_ranks_on_two_hosts(measured: Any) -> None:
    found = measured(3, Machine(3), hosts=["a", "a", "b"])[0]
    direct = {(source, target) for method, source, target in methods_measured(found) if method in DIRECT}
    assert direct == {(0, 1), (1, 0)}
    assert {(s, t) for method, s, t in methods_measured(found) if method == "through host"} == set(
        permutations(range(3), 2)
    )
    assert list(found.facts["not_measured"]) == ["on another host, whose memory cannot be accessed directly"]


def short(array: Any, begin: int, nbytes: int) -> None:
    array[begin + nbytes - 1] = 0xA5


def beyond(array: Any, begin: int, nbytes: int) -> None:
    array[begin + nbytes] = 0x11


def nothing(array: Any, begin: int, nbytes: int) -> None:
    array[begin : begin + nbytes] = 0xA5


@pytest.mark.parametrize(
    ("damage", "at"), [(short, "4095"), (beyond, "4096"), (nothing, "0")], ids=["short", "beyond", "nothing"]
)
@pytest.mark.parametrize("method", DIRECT)
def test_wrong_data_is_named_and_the_rest_goes_on(
    measured: Any, method: str, damage: Damage, at: str
) -> None:
    lessons = measured(2, Machine(2, damage={method: damage}), minbytes=4096, maxbytes=4096)
    assert len(lessons[0].mismatches) == 2
    first = lessons[0].mismatches[0]
    assert first.startswith(f"{method}, rank 0 to rank 1, 4 KiB: ")
    assert f"the first at {at}: got " in first
    assert lessons[1].mismatches == lessons[0].mismatches
    assert len(methods_measured(lessons[0])) == 10


def test_wrong_data_through_the_host(measured: Any) -> None:
    calls: list[int] = []  # two of a transfer: down to the host, and up again

    def every_other(array: Any, begin: int, nbytes: int) -> None:
        calls.append(begin)
        if len(calls) % 2:
            array[begin + 5] ^= 4

    found = measured(2, Machine(2, damage={"through host": every_other}), minbytes=64, maxbytes=64)[0]
    assert [line[:37] for line in found.mismatches] == [
        "through host, rank 0 to rank 1, 64 B:", "through host, rank 1 to rank 0, 64 B:"
    ]  # fmt: skip


def test_checks_can_be_left_out(measured: Any) -> None:
    assert measured(2, Machine(2, damage=dict.fromkeys(DIRECT, nothing)), check=False)[0].mismatches == ()


def test_too_much_is_refused_on_every_rank(measured: Any) -> None:
    with pytest.raises(UserError, match="not enough") as caught:
        measured(2, Machine(2), maxbytes=1 << 40)
    assert caught.value.everywhere
    with pytest.raises(UserError, match="not enough") as caught:
        measured(2, maxbytes=1 << 50)
    assert caught.value.everywhere


# Tables and sentences of invented figures


def made(**changes: Any) -> PeerResults:
    pairs, sizes = ((0, 1), (1, 0)), (4096, 1 << 20)
    rates = {
        "copy engine": (1e9, 400e9), "NCCL": (2e9, 300e9), "through host": (0.1e9, 10e9),
    }  # fmt: skip
    seconds = {
        (method, pair, size): size / rates[method][at] * (1 + pair[0])
        for method in rates for pair in pairs for at, size in enumerate(sizes)
    }  # fmt: skip
    latency = {
        (method, pair): time
        for method, time in zip(rates, (8e-6, 9e-6, 40e-6), strict=True) for pair in pairs
    }  # fmt: skip
    nominal = (GpuLinks(Reading(450.0, "18 links"), Reading(64.0, "PCIe 5")),) * 2
    words: dict[str, Any] = {
        "methods": tuple(rates), "pairs": pairs, "sizes": sizes, "devices": ("GPU-a", "GPU-b"),
        "messages": "NCCL 2.27.3", "nominal": nominal, "seconds": seconds, "latency": latency,
    }  # fmt: skip
    return PeerResults(**(words | changes))


def test_ratios_and_crossings() -> None:
    output = p2p.present(made()).explanation
    assert output == (
        "Fastest: NCCL from 4 KiB on, copy engine from 1 MiB on.",
        "1 MiB from 0 to 1 by copy engine, 400 GB/s: 40 times the bandwidth through the host; 88.9% of its "
        "links' 450 GB/s (18 links).",
    )


def test_tables() -> None:
    tables, facts = p2p.present(made()).tables, p2p.present(made()).facts
    rates = {"nvlink": 450.0, "nvlink_source": "18 links", "pcie": 64.0, "pcie_source": "PCIe 5"}
    assert facts["nominal"] == [rates, rates]
    assert [table.title for table in tables] == [
        "From rank 0 to rank 1, by size", "copy engine, 1 MiB", "NCCL, 1 MiB", "through host, 1 MiB",
        "Latency of a single transfer of 4 KiB",
    ]  # fmt: skip
    assert tables[1].rows == ((0, None, pytest.approx(400)), (1, pytest.approx(200), None))
    assert tables[-1].titles == ("from, to", "copy engine (us)", "NCCL (us)", "through host (us)")


@pytest.mark.parametrize(
    ("nominal", "words"),
    [
        (
            GpuLinks(Reading(None, "no active NVLink"), Reading(64.0, "PCIe 5")),
            "625.0% of its links' 64 GB/s (PCIe 5)",
        ),
        (
            GpuLinks(Reading(None, "no NVML"), Reading(None, "no NVML")),
            "peak of its links unknown (no NVML; no NVML)",
        ),
    ],
)
def test_links_that_are_not_known(nominal: GpuLinks, words: str) -> None:
    assert words in " ".join(p2p.present(made(nominal=(nominal, nominal))).explanation)


def test_ranks_that_share_a_gpu() -> None:
    output = " ".join(p2p.present(made(devices=("GPU-a", "GPU-a"))).explanation)
    assert "share a GPU, so that direct copies stay inside it: 0 to 1." in output
    assert "450" not in output


def test_nothing_measured_directly() -> None:
    whole = made()
    only = {key: value for key, value in whole.seconds.items() if key[0] != "copy engine"}
    late = {key: value for key, value in whole.latency.items() if key[0] != "copy engine"}
    reason = {"no peer access": [("copy engine", (0, 1)), ("copy engine", (1, 0))]}
    shown = p2p.present(made(seconds=only, latency=late, missing=reason))
    output = " ".join(shown.explanation)
    assert "Fastest: NCCL from 4 KiB on." in output
    assert "Not measured: copy engine (0 to 1, 1 to 0): no peer access." in output
    assert shown.tables[0].rows[0][1] is None


def test_of_many_pairs_the_extremes_are_named() -> None:
    pairs = tuple(permutations(range(3), 2))
    seconds = {("MPI", pair, 1000): 1e-6 * (1 + pair[0] + 3 * pair[1]) for pair in pairs}
    latency = {("MPI", pair): 1e-6 for pair in pairs}
    found = PeerResults(
        ("MPI",), pairs, (1000,), ("", "", ""), "MPI", (), seconds, latency, inside={1000: 1e-6}
    )
    output = " ".join(p2p.present(found).explanation)
    assert "by MPI, 0.25 GB/s: 25.0% of the bandwidth of a copy inside rank 0." in output
    assert "Over all pairs: MPI 0.125 GB/s (1 to 2) to 0.5 (1 to 0)." in output

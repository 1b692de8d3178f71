"""Whole runs on a simulated host: link rates, slow, wrong and unreachable transfers, and the moving GPU.

On the simulated host every transfer has a fixed rate, and moves the bytes that kernels and copy engines
would; addresses of one process are invalid in another.
"""

from __future__ import annotations

import re
from typing import Any

import made_box
import numpy as np
import pytest
from made_box import MadeBox, MadeHost

import meshrun.jobs.kernels
from meshrun.jobs.bench.copy.cases import CASES
from meshrun.jobs.measure.exit_codes import NeedsGpu, WrongResults
from meshrun.runner.errors import RunError

ROUND = 4 * 512 * 16  # bytes of a simulated GPU's whole grid
SIZE = 1 << 16
EVERY = [case.name for case in CASES if case.engine != "chase"]
MODES = [pytest.param({}, id="one process"), pytest.param({"ranks": 3}, id="a process a GPU")]


def by_places(source: str, target: str) -> float:
    """A rate for each direction and GPU, bytes per second."""
    if "host" not in (source, target):
        return (100 + 10 * int(source[4:]) + int(target[4:])) * 1e9 if source != target else 1000e9
    if source == "host":
        return (20 + int(target[4:])) * 1e9
    return (40 + int(source[4:])) * 1e9


def pair(source: int, target: int) -> str:
    return f"{100 + 10 * source + target:.2f}"


@pytest.mark.parametrize("mode", MODES)
def test_every_case_reports_its_flow(bench_copy: Any, mode: dict[str, Any]) -> None:
    ended = bench_copy(MadeHost(3, rate=by_places), *EVERY, **mode)
    assert ended.failure is None
    up, down = ["20.00", "21.00", "22.00"], ["40.00", "41.00", "42.00"]
    for engine in ("ce", "sm"):
        for case in ("host_to_device_memcpy", "host_to_all_memcpy"):
            assert ended.rows(f"{case}_{engine}") == [up]
        for case in ("device_to_host_memcpy", "all_to_host_memcpy"):
            assert ended.rows(f"{case}_{engine}") == [down]
        reads = [[pair(c, r) if c != r else "N/A" for c in range(3)] for r in range(3)]
        writes = [[pair(r, c) if c != r else "N/A" for c in range(3)] for r in range(3)]
        assert ended.rows(f"device_to_device_memcpy_read_{engine}") == reads
        assert ended.rows(f"device_to_device_memcpy_write_{engine}") == writes
        for word in ("read", "write"):
            both = f"device_to_device_bidirectional_memcpy_{word}_{engine}"
            assert ended.rows(f"{both}_{word}1") == reads
            assert ended.rows(f"{both}_{word}2") == writes
            total = [["N/A" if c == r else f"{200 + 11 * (r + c):.2f}" for c in range(3)] for r in range(3)]
            assert ended.rows(f"{both}_total") == total
    assert ended.rows("host_to_device_bidirectional_memcpy_ce") == [up]
    assert ended.rows("device_to_host_bidirectional_memcpy_ce") == [down]
    assert ended.rows("device_local_copy") == [["1000.00"] * 3]
    # Half of the bytes in each direction, one direction after the other on the simulated GPU.
    split = [f"{1 / (1 / (20 + n) + 1 / (40 + n)):.2f}" for n in range(3)]
    for case in ("host_to_device", "device_to_host", "all_to_host", "host_to_all"):
        assert ended.rows(f"{case}_bidirectional_memcpy_sm") == [split]
    # The slowest transfer ends last: its rate times the number of transfers.
    slowest = {"all_to_one": (110, 101, 102), "one_to_all": (101, 110, 120)}
    for case, read, write in (
        ("all_to_one", "one_to_all", "all_to_one"),
        ("one_to_all", "all_to_one", "one_to_all"),
    ):
        for engine in ("ce", "sm"):
            assert ended.rows(f"{case}_write_{engine}") == [[f"{2 * rate:.2f}" for rate in slowest[write]]]
            assert ended.rows(f"{case}_read_{engine}") == [[f"{2 * rate:.2f}" for rate in slowest[read]]]


@pytest.mark.parametrize("mode", MODES)
def test_latency_is_of_the_gpu_that_loads(bench_copy: Any, mode: dict[str, Any]) -> None:
    def latency(gpu: int, place: str) -> float:
        return 1e-9 * (700 + gpu if place == "host" else 1000 + 10 * gpu + int(place[4:]))

    names = ("host_device_latency_sm", "device_to_device_latency_sm")
    ended = bench_copy(MadeHost(3, latency=latency), *names, **mode)
    assert ended.failure is None
    assert ended.rows(names[0]) == [["700.00", "701.00", "702.00"]]
    assert ended.rows(names[1]) == [
        ["N/A", "1001.00", "1002.00"],
        ["1010.00", "N/A", "1012.00"],
        ["1020.00", "1021.00", "N/A"],
    ]


@pytest.mark.parametrize("ranks", [1, 4])
def test_some_pairs_of_many(bench_copy: Any, ranks: int) -> None:
    """The same ones in every case and on every rank; hosts are no pairs of GPUs."""
    names = (
        "device_to_device_memcpy_read_ce",
        "device_to_device_memcpy_write_sm",
        "host_to_device_memcpy_ce",
    )
    made = MadeHost(4, peers=lambda gpu, other: True)
    ended = bench_copy(made, *names, ranks=ranks, pairs=5)
    assert ended.failure is None
    assert "# At most 5 pairs of GPUs of each case, drawn with a fixed seed\n" in ended.text
    read, write, host = ([[word != "N/A" for word in row] for row in ended.rows(name)] for name in names)
    assert read == write
    assert sum(map(sum, read)) == 5
    assert host == [[True] * 4]
    every = bench_copy(made, names[0], pairs=12)
    assert sum(word != "N/A" for row in every.rows(names[0]) for word in row) == 12


@pytest.mark.parametrize("huge_pages", [False, True])
def test_host_memory_in_huge_pages(
    bench_copy: Any, monkeypatch: pytest.MonkeyPatch, huge_pages: bool
) -> None:
    taken, allocate = set(), MadeBox.allocate

    def noted(self: MadeBox, kind: Any, nbytes: int, gpu: int, **where: bool) -> Any:
        taken.add(kind)
        return allocate(self, kind, nbytes, gpu, **where)

    monkeypatch.setattr(MadeBox, "allocate", noted)
    ended = bench_copy(MadeHost(2), "host_to_device_memcpy_ce", huge_pages=huge_pages)
    assert ended.failure is None
    assert ("huge" in taken) == huge_pages
    assert ("# Host memory in huge pages\n" in ended.text) == huge_pages


def test_a_slow_pair_is_marked_and_named(bench_copy: Any) -> None:
    def rate(source: str, target: str) -> float:
        return 40e9 if (source, target) == ("GPU 2", "GPU 1") else 100e9

    ended = bench_copy(MadeHost(4, rate=rate), "device_to_device_memcpy_read_ce", ranks=4)
    rows = ended.rows("device_to_device_memcpy_read_ce")
    assert rows[1] == ["100.00", "N/A", "40.00*", "100.00"]
    assert sum(word.endswith("*") for row in rows for word in row) == 1
    assert "# * GPU 2 -> GPU 1 by GPU 1: 40.00 GB/s, 60% below the median of 12, 100.00\n" in ended.text
    assert ended.failure is None


def test_a_slow_gpu_is_what_its_pairs_have_in_common(bench_copy: Any) -> None:
    def rate(source: str, target: str) -> float:
        return 50e9 if "GPU 3" in (source, target) else 100e9

    ended = bench_copy(MadeHost(4, rate=rate), "device_to_device_memcpy_write_sm")
    assert "# * all 6 of these involve GPU 3\n" in ended.text


def test_a_slow_host_link_is_named(bench_copy: Any) -> None:
    ended = bench_copy(
        MadeHost(4, rate=lambda source, target: 12e9 if target == "GPU 2" else 50e9),
        "host_to_device_memcpy_ce",
    )
    assert "# * host -> GPU 2: 12.00 GB/s, 76% below the median of 4, 50.00\n" in ended.text
    assert ended.rows("host_to_device_memcpy_ce") == [["50.00", "50.00", "12.00*", "50.00"]]


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_byte_is_named_and_the_run_goes_on(bench_copy: Any, mode: dict[str, Any]) -> None:
    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        if (source, target) == ("GPU 0", "GPU 2"):
            array[4099] ^= 0x10

    names = ("device_to_device_memcpy_write_ce", "host_to_device_memcpy_ce")
    ended = bench_copy(MadeHost(3, spoil=spoil), *names, **mode)
    assert isinstance(ended.failure, WrongResults)
    assert ended.failure.exit_code == 7
    place = (
        r"device_to_device_memcpy_write_ce, cell \(0, 2\), sample 0: GPU 0 -> GPU 2 by GPU 0: byte 4096 of "
    )
    found = re.search(
        place + r"the target \(GPU 2\): got 0x(\w{16}), expected 0x(\w{16}); 1 wrong", str(ended.failure)
    )
    assert found
    assert int(found[1], 16) ^ int(found[2], 16) == 0x10 << 24  # byte 3 of the element
    assert ended.rows("host_to_device_memcpy_ce") == [["50.00"] * 3]
    assert ended.rows("device_to_device_memcpy_write_ce")[1] == ["50.00", "N/A", "50.00"]
    assert ended.text.count("# wrong data: ") == 3  # each sample


def test_without_checks_nothing_is_looked_at(bench_copy: Any) -> None:
    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        array[0] ^= 1

    assert bench_copy(MadeHost(2, spoil=spoil), "device_local_copy", check=False).failure is None
    assert isinstance(bench_copy(MadeHost(2, spoil=spoil), "device_local_copy").failure, WrongResults)


@pytest.mark.parametrize("engine", ["ce", "sm"])
def test_bytes_that_did_not_arrive_are_wrong(bench_copy: Any, engine: str) -> None:
    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        array[-16:] = 0xA5  # as before

    ended = bench_copy(MadeHost(1, spoil=spoil), f"host_to_device_memcpy_{engine}")
    assert "2 wrong elements" in str(ended.failure)


def test_a_split_copy_that_leaves_a_piece_is_wrong(bench_copy: Any) -> None:
    taken = []

    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        if target == "host":
            taken.append(1)
            if len(taken) % 64 == 3:
                array[...] = 0xA5

    ended = bench_copy(MadeHost(1, spoil=spoil), "host_to_device_bidirectional_memcpy_sm")
    assert "byte 2048 of the source (host)" in str(ended.failure)
    assert "64 wrong elements" in str(ended.failure)


def test_a_kernel_copies_whole_rounds_and_touches_nothing_behind(bench_copy: Any) -> None:
    size = 3 * ROUND + 4096  # at the made threshold, so the streaming kernel
    host = MadeHost(1, rate=lambda source, target: 64e9)
    ended = bench_copy(host, "host_to_device_memcpy_sm", size=size)
    assert ended.failure is None
    assert ended.rows("host_to_device_memcpy_sm") == [["64.00"]]

    def beyond(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        assert array.nbytes == 3 * ROUND
        array.base[3 * ROUND] = 1

    ended = bench_copy(MadeHost(1, spoil=beyond), "host_to_device_memcpy_sm", size=size)
    assert f"byte {3 * ROUND} of the target (GPU 0)" in str(ended.failure)


def test_a_copy_by_the_small_kernel(bench_copy: Any) -> None:
    ended = bench_copy(MadeHost(2, rate=by_places), "device_to_device_memcpy_read_sm", size=48)
    assert ended.failure is None
    assert ended.rows("device_to_device_memcpy_read_sm") == [["N/A", "110.00"], ["101.00", "N/A"]]


def test_a_chain_that_ends_elsewhere_is_wrong(bench_copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = MadeBox.copy

    def spoiled(self: MadeBox, target: Any, source: Any, nbytes: int, stream: Any) -> None:
        self.array(source).view(np.uint64)[16] += np.uint64(128)
        copied(self, target, source, nbytes, stream)

    monkeypatch.setattr(MadeBox, "copy", spoiled)
    ended = bench_copy(MadeHost(2), "device_to_device_latency_sm")
    assert isinstance(ended.failure, WrongResults)
    assert "GPU 1 read by GPU 0: 4 of 4 multiprocessors ended at a wrong address" in str(ended.failure)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({}, id="one process"),
        pytest.param({"ranks": 3}, id="a process a GPU"),
        pytest.param({"ranks": 3, "visible": [[0], [1], [2]]}, id="each sees its own"),
    ],
)
def test_pairs_without_peer_access_are_left_out(bench_copy: Any, mode: dict[str, Any]) -> None:
    host = MadeHost(3, peers=lambda gpu, other: {gpu, other} != {0, 2})
    names = ("device_to_device_memcpy_read_ce", "all_to_one_write_sm", "device_to_device_latency_sm")
    ended = bench_copy(host, *names, **mode)
    assert ended.failure is None
    assert ended.rows(names[0]) == [
        ["N/A", "50.00", "N/A"],
        ["50.00", "N/A", "50.00"],
        ["N/A", "50.00", "N/A"],
    ]
    # GPU 1 receives from two, the others from one.
    assert ended.rows(names[1]) == [["50.00", "100.00", "50.00"]]
    assert ended.rows(names[2])[0][2] == "N/A"
    hidden = "visible" in mode
    why = "memory of GPU 2 cannot be mapped: peer access" if hidden else "GPU 0 has no peer access to GPU 2"
    assert f"# cell (0, 2): {'GPU 2 -> GPU 0 by GPU 0: ' if hidden else ''}{why}" in ended.text


def test_gpus_that_only_their_own_rank_sees_are_measured(bench_copy: Any) -> None:
    ended = bench_copy(
        MadeHost(2, rate=by_places), "device_to_device_memcpy_write_sm", ranks=2, visible=[[0], [1]]
    )
    assert ended.rows("device_to_device_memcpy_write_sm") == [["N/A", "101.00"], ["110.00", "N/A"]]


def test_memory_that_cannot_be_exported(bench_copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = MadeBox.export

    def refused(self: MadeBox, memory: Any) -> bytes:
        if self.process == 2:
            raise RuntimeError("operation not supported")
        return exported(self, memory)

    monkeypatch.setattr(MadeBox, "export", refused)
    ended = bench_copy(MadeHost(2), "device_to_device_memcpy_write_ce", ranks=2)
    assert ended.failure is None
    row = next(row for row in ended.rows("device_to_device_memcpy_write_ce") if "50.00" in row)
    assert row.count("N/A") == 1
    assert ": its memory cannot be exported: operation not supported\n" in ended.text


def test_ranks_may_be_fewer_than_gpus(bench_copy: Any) -> None:
    ended = bench_copy(MadeHost(4, rate=by_places), "device_to_device_memcpy_write_ce", ranks=2)
    assert ended.rows("device_to_device_memcpy_write_ce") == [["N/A", "101.00"], ["110.00", "N/A"]]


def test_every_host_has_its_own_matrix(bench_copy: Any) -> None:
    slow = MadeHost(3, rate=lambda source, target: 10e9)
    names = ("device_to_device_memcpy_write_ce", "device_local_copy")
    ended = bench_copy(
        MadeHost(1),
        *names,
        ranks=4,
        hosts=["n1", "n2", "n2", "n2"],
        others=[slow],
        visible=[[0], *[[0, 1, 2]] * 3],
    )
    assert ended.failure is None
    assert "# n1\nRunning device_local_copy." in ended.text
    assert "# n2\nRunning device_local_copy." in ended.text
    assert "# n1\nRunning device_to_device" not in ended.text
    assert (
        "# device_to_device_memcpy_write_ce: waived on n1, it needs two GPUs, and there is 1\n" in ended.text
    )


def test_one_gpu_waives_what_takes_two(bench_copy: Any) -> None:
    ended = bench_copy(MadeHost(1))
    assert ended.failure is None
    waived = re.findall(r"# (\w+): waived, it needs two GPUs, and there is 1\n", ended.text)
    assert waived == [case.name for case in CASES if not list(case.cells(1))]
    assert len(waived) == 22
    assert ended.text.count("Running ") == 44 - 22


def test_gpus_without_bulk_copies_waive_them(bench_copy: Any) -> None:
    names = ("device_local_copy_tma", "device_to_device_latency_tma", "device_local_read_sm")
    ended = bench_copy(MadeHost(2, capability=80), *names)
    why = "bulk copies need compute capability 9, and GPU 0 (Made) has 8"
    for name in names[:2]:
        assert f"# {name}: waived, {why}\n" in ended.text
    assert ended.text.count("Running ") == 1


@pytest.mark.parametrize("name", ["device_local_read_sm", "device_local_write_sm", "device_local_copy_tma"])
@pytest.mark.parametrize("size", [16, 96, 1 << 14, (1 << 16) + 48])
def test_any_size_is_read_written_and_checked(bench_copy: Any, name: str, size: int) -> None:
    ended = bench_copy(MadeHost(1), name, size=size)
    assert ended.failure is None
    assert ended.rows(name)[0][0] != "N/A"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("device_local_read_sm", "1 wrong sum"), ("device_local_write_sm", "1 wrong element")],
)
def test_what_a_kernel_reads_or_writes_wrongly(bench_copy: Any, name: str, sentence: str) -> None:
    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        array[0] ^= 1

    ended = bench_copy(MadeHost(1, spoil=spoil), name)
    assert isinstance(ended.failure, WrongResults)
    assert sentence in str(ended.failure)


def test_one_pair_of_many(bench_copy: Any) -> None:
    name = "device_to_device_memcpy_read_tma"
    ended = bench_copy(MadeHost(3), name, pair=(2, 0))
    cells = [[cell != "N/A" for cell in row] for row in ended.rows(name)]
    assert cells == [[False, False, True], [False, False, False], [True, False, False]]
    ended = bench_copy(MadeHost(2), name, "device_local_copy", pair=(0, 7))
    assert f"# {name}: waived, there is no pair 0,7 of 2 GPUs\n" in ended.text


@pytest.mark.parametrize("gpus", [1, 2])
def test_nothing_that_could_be_measured(bench_copy: Any, gpus: int) -> None:
    ended = bench_copy(MadeHost(gpus, peers=lambda gpu, other: False), "device_to_device_memcpy_read_ce")
    assert isinstance(ended.failure, NeedsGpu)
    assert ("it needs two GPUs" if gpus == 1 else "no peer access") in str(ended.failure)


def test_buffers_are_made_smaller_where_memory_is_short(bench_copy: Any) -> None:
    ended = bench_copy(MadeHost(2, memory=4 << 20), "device_local_copy", size=4 << 20)
    assert ended.failure is None
    assert "# 1,048,576 bytes a buffer" in ended.text
    assert "# Reduced from 4,194,304 bytes, which do not fit in memory\n" in ended.text


@pytest.mark.parametrize("mode", MODES)
def test_nothing_stays_allocated_or_attached(bench_copy: Any, mode: dict[str, Any]) -> None:
    ended = bench_copy(MadeHost(3), "all_to_one_write_ce", "device_to_device_latency_sm", **mode)
    assert ended.failure is None
    assert [(box.blocks, box.pulled_away) for box in ended.boxes] == [({}, 0)] * len(ended.boxes)


# In one process the clock starts, as nvbandwidth's, when the first transfer has warmed up; a slower one has
# not.
@pytest.mark.parametrize(
    ("mode", "expected"),
    [({}, ["18.18", "15.38", "50.00"]), ({"ranks": 3}, ["40.00", "40.00", "100.00"])],
    ids=["one process", "a process a GPU"],
)
def test_all_together_take_as_long_as_the_last(
    bench_copy: Any, mode: dict[str, Any], expected: list[str]
) -> None:
    def rate(source: str, target: str) -> float:
        return {"GPU 0": 100e9, "GPU 1": 50e9, "GPU 2": 20e9}[source]

    for name in ("all_to_one_write_ce", "one_to_all_read_sm"):
        ended = bench_copy(MadeHost(3, rate=rate), name, **mode)
        assert [word.rstrip("*") for word in ended.rows(name)[0]] == expected


def test_everything_is_queued_behind_gates_as_nvbandwidth_does(
    bench_copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: list[str] = []
    numbers: dict[Any, int] = {}
    box = {name: getattr(MadeBox, name) for name in ("copy", "mark", "wait", "synchronize")}

    def stream(one: Any) -> str:
        return f"stream {numbers.setdefault(one, len(numbers))}"

    def noting(name: str, words: Any) -> Any:
        def noted(self: MadeBox, *arguments: Any) -> Any:
            done = box[name](self, *arguments)
            output.append(words(*arguments, done))
            return done

        return noted

    monkeypatch.setattr(MadeBox, "copy", noting("copy", lambda t, s, n, one, _: f"copy {stream(one)}"))
    monkeypatch.setattr(MadeBox, "mark", noting("mark", lambda one, _: f"mark {stream(one)}"))
    waits = noting("wait", lambda one, mark, _: f"{stream(one)} waits for {stream(mark.stream)}")
    monkeypatch.setattr(MadeBox, "wait", waits)
    monkeypatch.setattr(MadeBox, "synchronize", noting("synchronize", lambda one, _: f"done {stream(one)}"))
    load = meshrun.jobs.kernels.load

    def gates(file: str, instance: str, options: tuple[str, ...] = ()) -> Any:
        launch = load(file, instance, options)

        def launched(*arguments: Any, stream: Any) -> None:
            launch(*arguments, stream=stream)
            output.append(f"{instance} stream {numbers.setdefault(stream, len(numbers))}")

        return launched

    monkeypatch.setattr(meshrun.jobs.kernels, "load", gates)
    bench_copy(MadeHost(1), "host_to_device_bidirectional_memcpy_ce", copies=3, samples=1)
    assert output == [
        *("gate stream 0", "copy stream 0", "done stream 0"),  # loads what is launched below
        *("gate stream 0", *["copy stream 0"] * 4),
        *("gate stream 1", *["copy stream 1"] * 4),
        *("mark stream 0", "stream 1 waits for stream 0", "mark stream 1"),
        *(*["copy stream 0"] * 3, "mark stream 0"),
        *(*["copy stream 1"] * 3, "mark stream 1"),
        *("stream 0 waits for stream 1", "mark stream 0"),
        *("done stream 0", "done stream 1"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_what_arrived_in_the_sample_before_is_wrong(bench_copy: Any, mode: dict[str, Any]) -> None:
    first: dict[str, Any] = {}

    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        if (
            target == "GPU 2" and (array != 0xEE).any()
        ):  # which is what memory held before anything was filled
            array[...] = first.setdefault(target, array.copy())

    ended = bench_copy(MadeHost(3, spoil=spoil), "host_to_device_memcpy_ce", **mode)
    assert "host_to_device_memcpy_ce, cell (0, 2), sample 1: host -> GPU 2: byte 0 of" in str(ended.failure)
    assert "sample 0" not in str(ended.failure)


@pytest.mark.parametrize("half", ["source", "target"])
def test_a_split_copy_of_one_direction_is_wrong(
    bench_copy: Any, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    def one_way(stream: Any, threads: int, target: int, source: int, units: int, copies: int) -> float:
        to, come = (source, target) if half == "target" else (target, source)
        return sum(stream.box.carry(to + at, come + at, 512, stream) for at in pieces(units))

    def pieces(units: int) -> range:
        return range(512 if half == "source" else 0, 16 * units, 1024)

    monkeypatch.setitem(made_box.KERNELS, "copy_split", one_way)
    ended = bench_copy(MadeHost(1), "host_to_device_bidirectional_memcpy_sm")
    wrong = "source (host)" if half == "source" else "target (GPU 0)"
    assert isinstance(ended.failure, WrongResults)
    assert wrong in str(ended.failure)


def test_a_pair_that_is_connected_one_way_only_is_left_out(bench_copy: Any) -> None:
    host = MadeHost(2, peers=lambda gpu, other: (gpu, other) != (1, 0))
    ended = bench_copy(host, "device_to_device_memcpy_read_ce")
    assert isinstance(ended.failure, NeedsGpu)


def test_memory_is_used_again(bench_copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = []
    allocate = MadeBox.allocate

    def counted(self: MadeBox, kind: Any, nbytes: int, gpu: int) -> Any:
        allocated.append((kind, gpu))
        return allocate(self, kind, nbytes, gpu)

    monkeypatch.setattr(MadeBox, "allocate", counted)
    bench_copy(MadeHost(4), "device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_sm")
    assert sorted(allocated) == sorted([*(("device", gpu) for gpu in range(4)), ("pinned", 0)])


def test_a_gate_that_gave_way_ends_the_run(bench_copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = MadeBox.mark

    def hurried(self: MadeBox, stream: Any) -> Any:
        self.synchronize(stream)  # the GPU goes on before the host has opened the gate
        return marked(self, stream)

    monkeypatch.setattr(MadeBox, "mark", hurried)
    ended = bench_copy(MadeHost(1), "device_local_copy")
    assert isinstance(ended.failure, RunError)
    assert "gate opened by itself" in str(ended.failure)


def test_median_and_mean(bench_copy: Any) -> None:
    def drifting() -> Any:
        taken = iter([1e9] * 5 + [10e9] * 2 + [1e9] * 4 + [20e9] * 2 + [1e9] * 4 + [60e9] * 2)
        return lambda source, target: next(taken)

    # Each sample: 4 copies of warm-up, then 2 that count; one to make ready before all.
    ended = bench_copy(MadeHost(1, rate=drifting()), "device_local_copy")
    assert ended.rows("device_local_copy") == [["20.00"]]
    ended = bench_copy(MadeHost(1, rate=drifting()), "device_local_copy", mean=True)
    assert ended.rows("device_local_copy") == [["30.00"]]

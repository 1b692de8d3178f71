"""How a session adapts to the machine: memory, types, ranks; and its header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from meshrun import World
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.session import Bench, supported, within_memory
from meshrun.jobs.bench.collectives.specs import GUARD
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

GIB = 1 << 30


def gpu(memory: int = 80 * GIB, compute_capability: int = 90) -> Device:
    return Device("cuda", "a GPU", memory=memory, compute_capability=compute_capability)


def with_devices(world: World, devices: Sequence[Device]) -> World:
    """Return the world with these devices, by rank; the last one for all other ranks."""
    given = [devices[min(rank.number, len(devices) - 1)] for rank in world.ranks]
    return replace(
        world, ranks=tuple(replace(rank, device=one) for rank, one in zip(world.ranks, given, strict=True))
    )


@pytest.fixture
def fitted(on_ranks: Any) -> Any:
    """Apply `within_memory` on ranks with these devices, or with this much free memory."""

    def run(
        ranks: int, settings: SweepSettings, devices: Sequence[Device] = (), free: int = 0, hosts: Any = None
    ) -> tuple[int, int | None]:
        def body(world: World) -> tuple[int, int | None]:
            if devices:
                world = with_devices(world, devices)
            world.backend.free_memory = lambda: free
            found, reduced = within_memory(world, world.control, settings)
            assert replace(found, maxbytes=settings.maxbytes) == settings
            return found.maxbytes, reduced

        found = on_ranks(ranks, body, hosts=hosts)
        assert len({*found}) == 1  # all ranks agree
        return found[0]

    return run


def up_to(size: int, **others: int) -> SweepSettings:
    return SweepSettings(minbytes=8, maxbytes=size, stepfactor=2, **others)


@pytest.mark.parametrize(
    ("memory", "check", "fits"),
    [
        # For each 16 GiB installed, 1 GiB stays free, at most 4, and one more; a third of the rest fits.
        (80 * GIB, 1, 25 * GIB),  # 80 - 4 - 1 = 75
        (80 * GIB, 0, 75 * GIB // 2),  # half of it without checks
        (141 * GIB, 1, 136 * GIB // 3),
        (40 * GIB, 1, 12 * GIB),  # 40 - 3 - 1
        (16 * GIB, 1, 14 * GIB // 3),  # 16 - 1 - 1
        (16 * GIB + 1, 1, (13 * GIB + 1) // 3),  # 16 - 2 - 1
    ],
)
def test_memory_of_a_gpu_by_nccl_tests_rule(fitted: Any, memory: int, check: int, fits: int) -> None:
    assert fitted(1, up_to(fits, check=check), [gpu(memory)]) == (fits, None)
    assert fitted(1, up_to(fits + 1, check=check), [gpu(memory)]) == (fits, fits)
    assert fitted(1, up_to(1 << 60, check=check), [gpu(memory)]) == (fits, fits)


def test_the_smallest_gpu_decides_for_all(fitted: Any) -> None:
    assert fitted(3, up_to(64 * GIB), [gpu(80 * GIB), gpu(40 * GIB), gpu(80 * GIB)]) == (12 * GIB, 12 * GIB)


@pytest.mark.parametrize(
    ("ranks", "hosts", "fits"),
    [
        # What is available, for the host's ranks: two buffers each, as much scratch, and as much again free.
        (1, None, 16 * GIB),
        (4, None, 4 * GIB),
        (4, ["a", "a", "b", "b"], 8 * GIB),
        (4, ["a", "a", "a", "b"], 80 * GIB // 15),  # the fullest host decides
    ],
)
def test_memory_of_hosts_is_shared_by_their_ranks(
    fitted: Any, ranks: int, hosts: list[str] | None, fits: int
) -> None:
    assert fitted(ranks, up_to(fits), free=80 * GIB, hosts=hosts) == (fits, None)
    assert fitted(ranks, up_to(fits + 1), free=80 * GIB, hosts=hosts) == (fits, fits)


def test_if_nothing_fits_the_error_names_the_size_that_would(on_ranks: Any) -> None:
    def body(world: World) -> str:
        world = with_devices(world, [gpu(80 * GIB), gpu(40 * GIB)])
        settings = SweepSettings(minbytes=12 * GIB + 4, maxbytes=12 * GIB + 4)
        with pytest.raises(UserError) as refused:
            within_memory(world, world.control, settings)
        assert refused.value.everywhere
        return str(refused.value)

    assert on_ranks(2, body) == 2 * [
        "the smallest size does not fit into memory: got -b 12884901892 bytes, expected at most 12884901888 "
        "(12 GiB) for each buffer. Try: -b 6442450944 -e 12884901888"
    ]


def test_memory_on_which_nothing_fits_at_all(on_ranks: Any) -> None:
    """Less memory than the rule keeps free: no negative sizes in the message."""

    def body(world: World) -> str:
        with pytest.raises(UserError) as refused:
            within_memory(with_devices(world, [gpu(1 * GIB)]), world.control, up_to(64))
        return str(refused.value)

    [sentence] = on_ranks(1, body)
    assert "expected at most 0 (0 GiB)" in sentence
    assert "Try" not in sentence


def test_what_fits_is_what_is_measured(bench_on: Any, on_ranks: Any) -> None:
    def body(world: World) -> tuple[list[int], int | None, int]:
        world.backend.free_memory = lambda: 5000
        options = BenchOptions(("all_reduce",), SweepSettings(minbytes=100, maxbytes=1 << 40, stepfactor=2))
        with session.opened(
            world, world.control, options, "all_reduce", MeasurementProgress(), [0]
        ) as opened:
            return opened.bench.settings.sizes(), opened.reduced, opened.bench.send.nbytes

    assert on_ranks(1, body) == [([100, 200, 400, 800], 1000, 1000)]


@pytest.mark.parametrize(
    ("size", "unalign", "nbytes"),
    [(1 << 20, 0, 1 << 20), (1 << 20, 3, (1 << 20) + 24), (1, 0, 16), (1, 2, 32)],
)
def test_buffers_hold_the_largest_size_however_shifted(
    bench_on: Any, size: int, unalign: int, nbytes: int
) -> None:
    """24: three elements of 8 bytes. 16: for the shortest message that pingpong sends."""
    found = bench_on(1, "all_reduce", lambda bench: (bench.send.nbytes, bench.recv.nbytes),
                     minbytes=size, maxbytes=size, unalign=unalign)  # fmt: skip
    assert found == [(nbytes, nbytes + GUARD)], "checks see what is written past the largest result"


FLOAT8 = ("f8e4m3", "f8e5m2")


@pytest.fixture
def types(on_ranks: Any) -> Any:
    """Return the types measured on GPUs of these compute capabilities, with this version of NCCL."""

    def run(capabilities: Sequence[int], datatypes: tuple[str, ...], library: int = 22809) -> tuple[str, ...]:
        def body(world: World) -> tuple[str, ...]:
            world = with_devices(world, [gpu(compute_capability=one) for one in capabilities])
            return supported(world.control, world, SweepSettings(datatypes=datatypes), library).datatypes

        found = on_ranks(len(capabilities), body)
        assert len({*found}) == 1
        return found[0]

    return run


def test_all_types_are_those_that_every_gpu_has(types: Any) -> None:
    everything = (*DATATYPES,)
    assert types([90, 100], everything) == everything
    assert types([90, 80], everything) == everything[:10]
    assert types([80, 80], ("float",)) == ("float",)
    assert types([90, 90], everything, 22304) == everything[:10]
    assert types([90, 90], everything, 22403) == everything


def test_an_unsupported_type_given_by_name_is_refused(types: Any) -> None:
    with pytest.raises(UserError, match=r"capability 8\.9, NCCL 2\.28, expected 9\.0 or later"):
        types([90, 89], ("f8e4m3",))
    with pytest.raises(UserError, match=r"capability 9, NCCL 2\.23, expected .*NCCL 2\.24 or later"):
        types([90, 90], ("f8e5m2",), 22304)


def test_cpus_have_all_types(on_ranks: Any) -> None:
    wanted = SweepSettings(datatypes=FLOAT8)
    assert on_ranks(2, lambda world: supported(world.control, world, wanted, 0).datatypes) == [FLOAT8, FLOAT8]


@pytest.mark.parametrize(
    ("settings", "letter"),
    [
        ({"cudagraph": 1}, "-G"),
        ({"memory": True}, "-M"),
        ({"local_register": 2}, "-R"),
        ({"cta_policy": 0}, "-x"),
        ({"stream_null": True}, "-y"),
    ],
)
def test_what_only_gpus_have_is_refused_on_cpus(on_ranks: Any, settings: dict[str, Any], letter: str) -> None:
    def body(world: World) -> bool:
        options = BenchOptions(("all_reduce",), SweepSettings(**settings))
        opening = session.opened(world, world.control, options, "all_reduce", MeasurementProgress(), [0, 0])
        with pytest.raises(UserError, match=f"{letter}.* without {letter}") as refused, opening:
            pass
        return refused.value.everywhere

    assert on_ranks(2, body) == [True, True]


def test_the_header_names_every_rank(on_ranks: Any) -> None:
    def body(world: World) -> Any:
        options = BenchOptions(("sendrecv",), SweepSettings(minbytes=8, maxbytes=8), split="DIV2")
        colors = session.colors_of(world, options)
        with session.opened(
            world, world.control, options, "sendrecv", MeasurementProgress(), colors
        ) as opened:
            return opened.header

    header, *_ = on_ranks(3, body, hosts=["one.site.org", "one.site.org", "two.site.org"])
    assert (header.program, header.library) == ("sendrecv_perf", 0)
    assert header.backend == "threads of one process, host memory"
    assert [(one.rank, one.group, one.host, one.bus_id) for one in header.ranks] == [
        (0, 0, "one", "0000:00:00"), (1, 0, "one", "0000:00:00"), (2, 1, "two", "0000:00:00"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "steady", "said"),
    [(8, True, True), (8, False, False), (1 << 20, True, True), (2 << 20, True, False)],
)
def test_the_header_says_that_untimed_calls_are_repeated(
    on_ranks: Any, size: int, steady: bool, said: bool
) -> None:
    def body(world: World) -> Any:
        options = BenchOptions(("all_reduce",), SweepSettings(minbytes=size, maxbytes=4 << 20), steady=steady)
        with session.opened(
            world, world.control, options, "all_reduce", MeasurementProgress(), [0, 0]
        ) as opened:
            return opened.header.assumptions

    found, *_ = on_ranks(2, body)
    assert found == ((session.REPEATED,) if said else ())


def test_details_are_not_recorded_without_options(on_ranks: Any) -> None:
    """Calls are stamped and clocks compared only if an output needs it."""

    def body(world: World, **options: Any) -> bool:
        wanted = BenchOptions(("all_reduce",), SweepSettings(minbytes=8, maxbytes=8), **options)
        with session.opened(
            world, world.control, wanted, "all_reduce", MeasurementProgress(), [0, 0]
        ) as opened:
            bench: Bench = opened.bench
            return bench.detail

    assert on_ranks(2, body) == [False, False]
    for options in ({"names": True}, {"wide": True}, {"json_lines": "rows.json"}):
        assert on_ranks(2, lambda world, options=options: body(world, **options)) == [True, True]

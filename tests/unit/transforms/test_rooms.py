"""Transforms between GPUs, prepared once: ranks are threads, NumPy transforms in place of cuFFT."""

from __future__ import annotations

from collections import Counter
from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
from host_copies import HostCopies
from numpy_lines import operand_and_result
from room_ranks import Ranks
from thread_peers import ThreadPeers

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.plan.grid import split_along
from meshrun.runner.transforms import rooms
from meshrun.runner.transforms.device import DeviceTransform, changes_of
from meshrun.runner.transforms.plan import Real
from meshrun.runner.transforms.rooms import open_rooms, split_change
from meshrun.runner.transforms.split import SplitTransform
from meshrun.runner.world.world import World, open_world

KINDS: list[Real] = ["", "forward", "inverse"]


def padded(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array within a larger one, as blocks with a halo are."""
    return np.full(tuple(n + 2 for n in shape), 7, dtype)[tuple(slice(1, 1 + n) for n in shape)]


def taken(
    ranks: Ranks, world: World, transforms: list[SplitTransform], wholes: list[Any], rounds: int = 1
) -> list[Any]:
    """Return this rank's block of the results of transforms, of which two are under way at a time."""
    changes = {
        n: changes_of(one, wholes[n].dtype, world.size, followed=n % 2 == 0)
        for n, one in enumerate(transforms)
    }
    changes = {n: one for n, one in changes.items() if one}
    opened = ranks.opened(world, changes)
    kept: dict[Any, Any] = {}
    sources, targets, made = [], [], []
    for number, (transform, whole) in enumerate(zip(transforms, wholes, strict=True)):
        own = split_along(whole.shape, transform.split, world.size)[world.rank]
        sources.append(padded(own.shape, whole.dtype))
        sources[-1][...] = whole[own.slices]
        result = split_along(transform.result_shape, transform.result_split, world.size)[world.rank]
        wide = np.dtype("f8") if transform.real == "inverse" else np.dtype("c16")
        targets.append(padded(result.shape, wide))
        exchanges = []
        if number in changes:
            assert opened is not None
            exchanges = opened.exchanges([*changes].index(number), changes[number])
        made.append(DeviceTransform(world, transform, sources[-1], targets[-1], kept, exchanges))
    results: list[list[Any]] = []
    for _ in range(rounds):
        for target in targets:
            target.fill(np.nan)
        under_way: list[DeviceTransform] = []
        for one in made:
            one.begin()
            for former in under_way:
                former.finish()
            under_way = [one]
        under_way[0].finish()
        results.append([target.copy() for target in targets])
    for former_results in results:
        for earlier, target in zip(former_results, targets, strict=True):
            np.testing.assert_array_equal(earlier, target)
    for source, transform, whole in zip(sources, transforms, wholes, strict=True):
        own = split_along(whole.shape, transform.split, world.size)[world.rank]
        np.testing.assert_array_equal(source, whole[own.slices])
    if opened is not None:
        opened.close()
    return targets


@pytest.mark.parametrize("how", ["messages", "early", "late"])
@pytest.mark.parametrize("real", KINDS)
@pytest.mark.parametrize("shape", [(8, 6), (5, 7), (2, 3), (70, 34), (4, 5, 6)])
def test_every_transform_on_any_number_of_ranks(
    shape: tuple[int, ...], real: Real, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All axes in all orders, from all splits, as NumPy's within rounding; the same bits on any ranks."""
    transforms, wholes, wanted = [], [], []
    for axes in chain(*(permutations(range(len(shape)), count) for count in range(1, len(shape) + 1))):
        whole, result, length = operand_and_result(shape, axes, real, "f8")
        for split in range(len(shape)):
            transforms.append(SplitTransform(shape, axes, real, real == "inverse", length, split))
            wholes.append(whole)
            wanted.append(result)
    bits = set()
    for count in (2, 3, 5):
        ranks = Ranks(monkeypatch, how)
        found = ranks.run(count, lambda world: taken(ranks, world, transforms, wholes))  # noqa: B023
        every = []
        for number, (transform, result) in enumerate(zip(transforms, wanted, strict=True)):
            got = np.concatenate([blocks[number] for blocks in found], axis=transform.result_split)
            np.testing.assert_allclose(got, result, rtol=0, atol=1e-12 * max(np.abs(result).max(), 1))
            every.append(got.tobytes())
        bits.add(b"".join(every))
    assert len(bits) == 1


@pytest.mark.parametrize("how", ["messages", "early", "late"])
@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("sets", [2, 3])
def test_no_rank_overwrites_what_a_slower_one_reads(
    how: str, slow: int, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sets == 2:
        monkeypatch.setattr(CpuBackend, "free_memory", lambda self: 4 * 12 * 32 * 16)
    rng = np.random.default_rng(0)
    there = SplitTransform((12, 20), (0, 1), "", False, 0, 0)
    back = SplitTransform((12, 20), (0, 1), "", True, 0, 1)
    transforms = [there, back, there, there, back, there, there]
    wholes = [rng.standard_normal((12, 20)) + 0j for _ in transforms]
    for count in (2, 3):
        ranks = Ranks(monkeypatch, how, slow)
        found = ranks.run(count, lambda world: taken(ranks, world, transforms, wholes, rounds=3))  # noqa: B023
        for number, (transform, whole) in enumerate(zip(transforms, wholes, strict=True)):
            got = np.concatenate([blocks[number] for blocks in found], axis=transform.result_split)
            result = np.fft.ifft2(whole, norm="forward") if transform.inverse else np.fft.fft2(whole)
            np.testing.assert_allclose(got, result, rtol=0, atol=1e-12 * np.abs(result).max())


def test_a_matrix_is_copied_as_one_box_of_rows_for_each_part_and_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = Counter[str]()

    def case(world: World) -> None:
        ranks = Ranks(monkeypatch, "early")
        change = split_change((64, 33), np.dtype("c8"), (0, 1), 2, rooms.PARTS)
        opened = ranks.opened(world, {0: [change]})
        assert opened is not None
        (exchange,) = opened.exchanges(0, [change])
        made = next(iter(ranks.copies.values()))
        rows = made.rows
        made.rows = lambda *words: (copies.update(["rows"]), rows(*words))  # type: ignore[assignment, func-returns-value]
        for number in range(len(exchange.parts)):
            exchange.send(number)
        exchange.wait()
        assert len(exchange.parts) == rooms.PARTS

    run_ranks(2, lambda control: case(open_world("cpu", control=control)), timeout=60)
    assert copies["rows"] == 2 * rooms.PARTS


def test_as_many_sets_of_rooms_as_fit_in_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    change = split_change((64, 33), np.dtype("c8"), (0, 1), 2, rooms.PARTS)

    def case(world: World, free: int) -> int:
        world.backend.free_memory = lambda: free  # type: ignore[method-assign]
        opened = Ranks(monkeypatch, "early").opened(world, {0: [change]})
        assert opened is not None
        return opened.sets

    room = 2 * change.nbytes
    for free, sets in ((4 * room, 3), (3 * room, 3), (3 * room - 1, 2), (2 * room - 1, 1), (0, 1)):
        found = run_ranks(2, lambda control, free=free: case(open_world("cpu", control=control), free))
        assert found == [sets, sets]


def test_a_rank_that_cannot_open_others_rooms_lets_all_send_messages() -> None:
    change = split_change((64, 33), np.dtype("c8"), (0, 1), 2, rooms.PARTS)

    def case(world: World) -> str:
        peers: Any = ThreadPeers(world, blind=[1])
        copies: Any = HostCopies(world, None)
        opened = open_rooms(world, {0: [change]}, copies, peers)
        assert opened is not None
        return opened.reason

    found = run_ranks(2, lambda control: case(open_world("cpu", control=control)))
    assert found == ["rank 1 cannot open rank 0's memory"] * 2


@pytest.mark.parametrize("columns", [129, 257, 300])
def test_blocks_and_parts_of_columns_begin_at_whole_lines(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "PART_BYTES", 16)
    change = split_change((40, columns), np.dtype("c8"), (1, 0), 2, rooms.PARTS)
    for rank in range(2):
        first, second = change.blocks(rank)
        assert first.element(first.region.start) % rooms.LINE_CELLS == 0
        assert first.lengths == second.lengths
        parts = [change.part(rank, number) for number in range(change.parts)]
        assert sum(one.size for one in parts) == first.region.size
        for one in filter(lambda one: one.size, parts):
            assert first.element(one.start) % rooms.LINE_CELLS == 0


def test_rows_too_far_apart_are_sent_by_messages() -> None:
    assert split_change((4, 1 << 29), np.dtype("c16"), (0, 1), 2, rooms.PARTS).problem
    assert not split_change((1 << 29, 4), np.dtype("c16"), (0, 1), 2, rooms.PARTS).problem

"""The world on MPI's ranks: places, hosts, and errors that every rank raises alike."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world import world
from meshrun.runner.world.world import find_ranks, open_world

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_library]


def test_the_launchers_ranks_are_mpis_ranks(comm: MpiComm) -> None:
    found = find_ranks(None)
    assert (found.size, found.rank) == (comm.size, comm.rank)
    found.close()


def test_a_wrong_number_of_ranks(comm: MpiComm) -> None:
    with pytest.raises(UserError, match=f"-n {comm.size + 1} contradicts .* started {comm.size}") as caught:
        find_ranks(comm.size + 1)
    assert caught.value.everywhere


def test_places(comm: MpiComm) -> None:
    opened = open_world("cpu", control=comm)
    assert [rank.number for rank in opened.ranks] == list(range(comm.size))
    assert [rank.local for rank in opened.ranks] == list(range(comm.size)), "one machine"
    assert len(opened.hosts) == 1
    assert len({rank.pid for rank in opened.ranks}) == comm.size
    assert opened.here.number == comm.rank
    assert comm.allgather((opened.ranks, opened.run_id)) == [(opened.ranks, opened.run_id)] * comm.size
    assert opened.warnings == []


def test_places_on_two_hosts(comm: MpiComm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks dealt in turn to two hosts; MPI still sees one machine, which is worth a warning."""
    name = "odd" if comm.rank % 2 else "even"
    monkeypatch.setattr(world, "identify_host", lambda: (name, f"{name}/boot"))
    opened = open_world("cpu", control=comm)
    assert [rank.local for rank in opened.ranks] == [rank // 2 for rank in range(comm.size)]
    assert opened.hosts == ["even", "odd"][: min(comm.size, 2)]
    assert len(opened.warnings) == (2 if comm.size > 1 else 0)


def test_one_rank_that_cannot_look_fails_every_rank(comm: MpiComm, monkeypatch: pytest.MonkeyPatch) -> None:
    last = comm.size - 1

    def fail_on_the_last(_: str) -> int:
        if comm.rank == last:
            raise UserError("CUDA finds no GPU", got=ValueError("no driver"), hint="nvidia-smi")
        return 0

    monkeypatch.setattr(world, "visible_gpus", fail_on_the_last)
    with pytest.raises(
        UserError, match=rf"^\[rank {last}, host .*\] CUDA finds no GPU: got no driver"
    ) as caught:
        open_world(control=comm)
    assert caught.value.everywhere


def test_once(comm: MpiComm) -> None:
    opened = open_world("cpu", control=comm)
    assert opened.on_root(lambda: f"seen by {comm.rank}") == "seen by 0"

    def fail() -> None:
        raise RunError(f"rank {comm.rank} failed", hint="again")

    with pytest.raises(RunError, match=r"^rank 0 failed\. Try: again$") as caught:
        opened.on_root(fail)
    assert caught.value.everywhere


def test_an_error_of_rank_0_that_is_not_ours_is_raised_by_all(comm: MpiComm) -> None:
    opened = open_world("cpu", control=comm)

    def fail(failure: Exception) -> None:
        raise failure

    with pytest.raises(FileNotFoundError, match=r"a\.npy"):
        opened.on_root(lambda: fail(FileNotFoundError(2, "No such file", "a.npy")))
    if comm.size > 1:
        with pytest.raises(RunError, match="ValueError: <unlocked"):
            opened.on_root(lambda: fail(ValueError(threading.Lock())))
        with pytest.raises(RunError, match="rank 0's value cannot be sent to the other ranks: got lock: "):
            opened.on_root(threading.Lock)
    assert opened.on_root(lambda: "and on") == "and on"


def test_together(comm: MpiComm) -> None:
    opened = open_world("cpu", control=comm)
    assert opened.collective_call(lambda: comm.rank) == comm.rank

    def fail_on_the_last() -> None:
        if comm.rank == comm.size - 1:
            raise RunError(f"rank {comm.rank} failed")

    with pytest.raises(RunError, match=f"^rank {comm.size - 1} failed$") as caught:
        opened.collective_call(fail_on_the_last)
    assert caught.value.everywhere


def test_all_reduce(comm: MpiComm) -> None:
    opened = open_world("cpu", control=comm)
    array = np.full(3, comm.rank + 1.0)
    assert opened.all_reduce(array) is array
    assert array.tolist() == [comm.size * (comm.size + 1) / 2] * 3

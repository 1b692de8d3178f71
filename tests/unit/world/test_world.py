"""Ranks, hosts, local ranks and devices, on simulated ranks with fake GPUs; and what contradicts itself."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.staged import StagedComm
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.api import Backend, Device
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import MeshrunError, RunError, UserError, describe, is_met_by_all, traceback_of
from meshrun.runner.system import launcher
from meshrun.runner.world import binding, world
from meshrun.runner.world.binding import choose_gpu
from meshrun.runner.world.world import (
    Rank,
    World,
    clash_error,
    clashes,
    find_ranks,
    locality_warnings,
    open_world,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, also when the tests themselves run under one."""
    names = [name for variables in (launcher.VARIABLES, launcher.RANK_ONLY) for name in sum(variables, ())]
    for name in [*names, *(name for name in os.environ if name.startswith("SLURM_"))]:
        monkeypatch.delenv(name, raising=False)


# Which GPU


@pytest.mark.parametrize(
    ("visible", "local", "local_size", "expected"),
    [
        (8, 3, 8, 3),  # all visible: by local rank
        (8, 1, 2, 1),
        (1, 0, 1, 0),
        (1, 3, 4, 0),  # bound by the launcher: each its own, as device 0
        (2, 1, 2, 1),
    ],
)
def test_choose_gpu(visible: int, local: int, local_size: int, expected: int) -> None:
    for oversubscribe in (False, True):
        assert choose_gpu(visible, local, local_size, oversubscribe) == expected


def test_more_ranks_than_gpus() -> None:
    with pytest.raises(UserError, match=r"got 4 ranks, 2 GPUs visible.*Try: -n 2, or --oversubscribe"):
        choose_gpu(2, 0, 4, oversubscribe=False)
    assert [choose_gpu(2, local, 5, oversubscribe=True) for local in range(5)] == [0, 1, 0, 1, 0]


def gpu(index: int, uuid: str) -> Device:
    return Device(kind="cuda", name="fake", index=index, uuid=uuid, bus_id=f"0000:0{index}:00.0")


def place(number: int, device: Device, host: str = "n1") -> Rank:
    return Rank(number, host, f"{host}/boot", number, 100 + number, device)


def test_two_ranks_on_one_gpu_are_found_by_uuid_however_they_number_it() -> None:
    ranks = [place(0, gpu(0, "A")), place(1, gpu(0, "B")), place(2, gpu(1, "A"))]
    assert clashes(ranks) == [(ranks[0], ranks[2])]
    error = clash_error(clashes(ranks))
    assert error.everywhere
    for word in ("ranks 0 and 2", "host n1", "A, bus 0000:00:00.0", "--oversubscribe"):
        assert word in str(error)


def test_no_clash() -> None:
    cpu = CpuBackend().device
    assert not clashes(
        [place(0, gpu(0, "A"), "n1"), place(1, gpu(0, "B"), "n1"), place(2, gpu(0, "C"), "n2")]
    )
    assert not clashes([place(0, cpu), place(1, cpu)])
    same_uuid_elsewhere = [place(0, gpu(0, "A"), "n1"), place(1, gpu(0, "A"), "n2")]
    assert not clashes(same_uuid_elsewhere), "virtual machines may hand out the same UUID"


def test_a_clash_of_three() -> None:
    ranks = [place(number, gpu(0, "A")) for number in range(3)]
    assert clashes(ranks) == [(ranks[0], ranks[1]), (ranks[0], ranks[2])]


# Hosts


def test_a_host_is_its_name_and_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(nodename="node"))
    identities = []
    for boot in ("b0-1\n", "b0-2\n"):
        monkeypatch.setattr(Path, "read_text", lambda _, boot=boot: boot)
        identities.append(world.identify_host())
    assert identities == [("node", "node/b0-1"), ("node", "node/b0-2")]


def test_without_a_boot_id_the_name_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(nodename="node"))
    monkeypatch.setattr(Path, "read_text", missing)
    assert world.identify_host() == ("node", "node/")


def test_where_mpi_sees_other_neighbours_there_is_one_warning_a_host() -> None:
    hosts = ["n1/x", "n1/x", "n2/y", "n2/y"]
    assert locality_warnings(hosts, [2, 2, 2, 2]) == []
    assert locality_warnings(hosts, [None] * 4) == []
    (warning,) = locality_warnings(hosts, [2, 2, 1, 1])
    assert warning.startswith("host n2: 2 ranks by host identity, but MPI sees 1")
    assert len(locality_warnings(hosts, [4, 4, 4, 4])) == 2


# Finding the ranks


class FakeMpi:
    """Stands for MpiComm: what MPI says, without MPI."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self.size, self.rank = size, rank


def set_launch(monkeypatch: pytest.MonkeyPatch, mpi: Callable[[], Any], **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("meshrun.runner.comm.mpi.MpiComm", mpi)


def no_mpi() -> None:
    raise AssertionError("one rank needs no MPI")


def test_nothing_launched_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch, no_mpi)
    for expected in (None, 1):
        assert find_ranks(expected).size == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        # one rank asked of mpirun inside a larger allocation: the launcher has the say
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "SLURM_NTASKS": "8"},
    ],
)
def test_a_launcher_of_one_rank_needs_no_mpi(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    set_launch(monkeypatch, no_mpi, **variables)
    assert find_ranks(None).size == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
        {"PMI_SIZE": "4", "PMI_RANK": "1"},
        {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"},
        {"PMIX_RANK": "1"},
    ],
)
def test_launcher_and_mpi_agree(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    set_launch(monkeypatch, lambda: FakeMpi(4, 1), **variables)
    assert find_ranks(None).size == 4
    assert find_ranks(4).rank == 1


@pytest.mark.parametrize(
    ("failure", "is_missing"),
    [
        (ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"), True),
        (ImportError("libmpi.so.40: cannot open shared object file"), True),
        (RuntimeError("cannot load MPI library\nlibmpi.so: cannot open"), True),
        (ModuleNotFoundError("No module named 'site_hook'", name="site_hook"), False),
        (RuntimeError("MPI_Init_thread() failed [error code: 16]"), False),
    ],
)
def test_only_a_missing_mpi_is_called_missing(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, is_missing: bool
) -> None:
    def fail() -> None:
        raise failure

    set_launch(monkeypatch, fail, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="1")
    with pytest.raises(MeshrunError) as caught:
        find_ranks(None)
    assert ("cannot load an MPI library" in str(caught.value)) == is_missing
    assert str(failure).splitlines()[0] in str(caught.value)
    assert caught.value.exit_code == (2 if is_missing else 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_n_separate_worlds_of_one(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    set_launch(monkeypatch, lambda: FakeMpi(1), PMI_SIZE="4", PMI_RANK=str(rank))
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(
        UserError, match=r"started 4 processes.*connects only 1 of them.*got 1 rank\(s\), expected 4"
    ) as caught:
        find_ranks(None)
    assert caught.value.everywhere == (rank != 0), "only the launcher's rank 0 speaks"
    assert bool(waits) == (rank != 0), "and a rank that ends before it ends it too"


def test_a_rank_that_mpi_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch, lambda: FakeMpi(1), ALPS_APP_PE="1")
    with pytest.raises(UserError, match="aprun started this process as rank 1, but MPI connects only 1"):
        find_ranks(None)
    set_launch(monkeypatch, lambda: FakeMpi(2), ALPS_APP_PE="1")
    assert find_ranks(None).size == 2


@pytest.mark.parametrize("expected", [None, 1, 2])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_processes_that_mpi_does_not_connect(
    monkeypatch: pytest.MonkeyPatch, rank: str, expected: int | None
) -> None:
    set_launch(monkeypatch, no_mpi, RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="n1")
    with pytest.raises(UserError) as caught:
        find_ranks(expected)
    assert str(caught.value) == (
        "torchrun or a similar launcher started 2 processes (WORLD_SIZE), which MPI does not connect: they "
        "would be 2 runs of one rank. Try: mpirun -n 2 meshrun ..., srun, or meshrun launch; for a process "
        "that is not one of several, env -u WORLD_SIZE meshrun ..."
    )
    assert not caught.value.everywhere, "each process may be the only one on its host that can tell"


def test_the_advice_inside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch, lambda: FakeMpi(1), SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="0", SLURM_JOB_ID="7")
    with pytest.raises(UserError, match="srun --mpi=pmix"):
        find_ranks(None)


def test_alone_in_a_slurm_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    set_launch(monkeypatch, no_mpi, SLURM_NTASKS="8", SLURM_JOB_ID="7")
    with pytest.raises(UserError, match=r"got 1 rank, expected 8 \(SLURM_NTASKS\).*-n 1"):
        find_ranks(None)
    assert find_ranks(1).size == 1


@pytest.mark.parametrize(
    ("variables", "size", "source"),
    [({}, 1, "this process"), ({"PMI_SIZE": "4", "PMI_RANK": "0"}, 4, "a PMI launcher")],
)
def test_the_users_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], size: int, source: str
) -> None:
    set_launch(monkeypatch, lambda: FakeMpi(size), **variables)
    with pytest.raises(UserError, match=f"-n 3 contradicts {source}.*which started {size}") as caught:
        find_ranks(3)
    assert caught.value.everywhere


@pytest.mark.parametrize(
    "reason", [RuntimeError("cannot load MPI library\nlibmpi.so"), ImportError("libmpi.so.12: cannot open")]
)
def test_launched_without_an_mpi_library(monkeypatch: pytest.MonkeyPatch, reason: Exception) -> None:
    def broken() -> None:
        raise reason

    set_launch(monkeypatch, broken, PMI_SIZE="4", PMI_RANK="0")
    with pytest.raises(UserError, match=r"cannot load an MPI library.*Try: load the site's MPI module"):
        find_ranks(None)


# Opening the world


me = threading.local()  # the rank of this thread, for fakes that know only their own process


@dataclass
class FakeControl:
    rank: int
    size: int = 3


class FakeGpuBackend(CpuBackend):
    def __init__(self, device: Device) -> None:
        self.device = device


def fake_hosts(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    monkeypatch.setattr(world, "identify_host", lambda: (hosts[me.rank], f"{hosts[me.rank]}/boot"))


def fake_gpus(monkeypatch: pytest.MonkeyPatch, visible: Sequence[Sequence[str] | MeshrunError]) -> None:
    """Rank i sees GPUs of these UUIDs, in this order, or fails to look."""

    def count(_: str) -> int:
        found = visible[me.rank]
        if isinstance(found, MeshrunError):
            raise found
        return len(found)

    def bind_device(
        control: Control, _: Sequence[int], local: int, local_size: int, oversubscribe: bool, later: bool
    ) -> Backend:
        found = visible[control.rank]
        assert not isinstance(found, MeshrunError)
        index = choose_gpu(len(found), local, local_size, oversubscribe)
        return FakeGpuBackend(gpu(index, found[index]))

    monkeypatch.setattr(world, "visible_gpus", count)
    monkeypatch.setattr(world, "bind_device", bind_device)


def open_worlds(size: int, **options: Any) -> list[World]:
    def rank_main(comm: ThreadComm) -> World:
        me.rank = comm.rank
        return open_world(control=comm, **options)

    return run_ranks(size, rank_main)


def failures(size: int, **options: Any) -> list[MeshrunError]:
    """The error of every rank; fails when a rank has none."""

    def rank_main(comm: ThreadComm) -> MeshrunError:
        me.rank = comm.rank
        try:
            open_world(control=comm, **options)
        except MeshrunError as failure:
            return failure
        raise AssertionError(f"rank {comm.rank} went on alone")

    return run_ranks(size, rank_main)


def test_places_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "b", "a", "a", "b")
    worlds = open_worlds(5, device="cpu")
    assert [(rank.number, rank.host, rank.local) for rank in worlds[0].ranks] == [
        (0, "a", 0),
        (1, "b", 0),
        (2, "a", 1),
        (3, "a", 2),
        (4, "b", 1),
    ]
    assert all(w.ranks == worlds[0].ranks for w in worlds)
    assert len({w.run_id for w in worlds}) == 1
    for rank, opened in enumerate(worlds):
        assert (opened.rank, opened.size, opened.here.number) == (rank, 5, rank)
        assert opened.hosts == ["a", "b"]
        assert opened.xp is np
        assert opened.arrays is opened.control
        assert str(opened.here) == f"rank {rank}, host {opened.here.host}, CPU"


def test_two_hosts_of_one_name_are_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "identify_host", lambda: ("node", f"node/boot-{me.rank}"))
    worlds = open_worlds(2, device="cpu")
    assert [rank.local for rank in worlds[0].ranks] == [0, 0]
    assert worlds[0].hosts == ["node", "node"]
    assert worlds[0].warnings, "the simulated transport says that they share memory"


def test_a_run_id_is_new_each_time() -> None:
    assert open_world("cpu").run_id != open_world("cpu").run_id


def test_gpus_by_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "a", "b", "b")
    fake_gpus(monkeypatch, ["AB", "AB", "CD", "CD"])
    nccl: list[int] = []
    monkeypatch.setattr(world, "open_arrays", lambda control, *_, **__: nccl.append(control.rank))
    worlds = open_worlds(4)
    assert [rank.device.uuid for rank in worlds[0].ranks] == ["A", "B", "C", "D"]
    assert [rank.device.index for rank in worlds[0].ranks] == [0, 1, 0, 1]
    assert sorted(nccl) == [0, 1, 2, 3]


def test_gpus_bound_by_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "a")
    fake_gpus(monkeypatch, ["A", "B"])
    monkeypatch.setattr(world, "open_arrays", lambda control, *_, **__: control)
    assert [(r.device.index, r.device.uuid) for r in open_worlds(2)[0].ranks] == [(0, "A"), (0, "B")]


def test_two_ranks_bound_to_one_gpu_are_refused_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "a", "b")
    fake_gpus(monkeypatch, ["A", "A", "B"])
    for failure in failures(3):
        assert isinstance(failure, UserError)
        assert failure.everywhere
        assert "ranks 0 and 1 on host a are bound to one GPU" in str(failure)


def test_sharing_a_gpu_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses two ranks on one GPU; their arrays go through host memory."""
    fake_hosts(monkeypatch, "a", "a")
    fake_gpus(monkeypatch, ["A", "A"])

    def rank_main(comm: ThreadComm) -> tuple[list[float], list[float]]:
        me.rank = comm.rank
        opened = open_world(control=comm, oversubscribe=True)
        assert isinstance(opened.arrays, StagedComm)
        sent, received = np.full(2, float(comm.rank)), np.empty(2)
        opened.arrays.exchange([(1 - comm.rank, sent)], [(1 - comm.rank, received)]).wait()
        total = opened.all_reduce(np.full(2, float(comm.rank + 1)))
        opened.close()
        return received.tolist(), total.tolist()

    assert run_ranks(2, rank_main) == [([1, 1], [3, 3]), ([0, 0], [3, 3])]


def test_one_rank_that_cannot_look_fails_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "a", "b")
    fake_gpus(monkeypatch, ["AB", "AB", UserError("--device cuda, but CUDA finds no GPU", hint="nvidia-smi")])
    for failure in failures(3, device="cuda"):
        assert type(failure) is UserError
        assert failure.everywhere
        assert str(failure) == "[rank 2, host b] --device cuda, but CUDA finds no GPU. Try: nvidia-smi"


def test_more_ranks_than_gpus_fails_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hosts(monkeypatch, "a", "b", "b", "b")
    fake_gpus(monkeypatch, ["A", "BC", "BC", "BC"])
    messages = {str(failure) for failure in failures(4)}
    (message,) = messages
    assert message.startswith(
        "[rank 1, host b] more ranks than GPUs on this host: got 3 ranks, 2 GPUs visible"
    )


# Binding


def test_no_rank_sees_a_gpu() -> None:
    assert isinstance(binding.bind_device(ThreadComm(), [0], 0, 1, oversubscribe=False), CpuBackend)


def fake_modules(
    monkeypatch: pytest.MonkeyPatch, count: int = 2, nccl: Callable[[], Any] = lambda: None
) -> None:
    """`runner.device.cuda` and `runner.comm.nccl` without CuPy."""
    cuda = types.ModuleType("meshrun.runner.device.cuda")
    vars(cuda).update(
        count=lambda: count, CudaBackend=lambda index: FakeGpuBackend(gpu(index, f"GPU{index}"))
    )
    fake_nccl = types.ModuleType("meshrun.runner.comm.nccl")
    vars(fake_nccl).update(load=nccl)
    for module in (cuda, fake_nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        package, _, name = module.__name__.rpartition(".")
        monkeypatch.setattr(importlib.import_module(package), name, module, raising=False)


def test_a_rank_without_a_gpu_among_ranks_with(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch)
    blind = FakeControl(1)
    with pytest.raises(UserError, match=r"this rank sees no GPU, rank 2 does.*--device cpu"):
        binding.bind_device(blind, [1, 0, 2], 0, 1, oversubscribe=False)


def test_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch)
    bound = binding.bind_device(FakeControl(2), [2, 2, 2], 1, 2, oversubscribe=False)
    assert bound.device.uuid == "GPU1"


def test_several_ranks_need_nccl_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("no libnccl")

    fake_modules(monkeypatch, nccl=missing)
    with pytest.raises(UserError, match="no libnccl"):
        binding.bind_device(FakeControl(0), [2, 2, 2], 0, 2, oversubscribe=False)
    binding.bind_device(ThreadComm(), [2], 0, 1, oversubscribe=False)  # one rank does not
    binding.bind_device(FakeControl(0), [1, 1, 1], 0, 3, oversubscribe=True)
    binding.bind_device(FakeControl(0), [2, 2, 2], 0, 2, oversubscribe=False, later=True)


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch, count=3)
    assert [binding.visible_gpus(choice) for choice in ("auto", "cuda", "cpu")] == [3, 3, 0]
    fake_modules(monkeypatch, count=0)
    assert binding.visible_gpus("auto") == 0
    with pytest.raises(UserError, match="CUDA finds no GPU"):
        binding.visible_gpus("cuda")


@pytest.mark.parametrize("words", ["No module named 'cupy'\nmore", ""])
def test_without_cupy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "cupy":
                raise ImportError(words)

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    for name in ("cupy", "meshrun.runner.device.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("meshrun.runner.device.cuda", raising=False)
    with pytest.raises(UserError, match=r"CuPy cannot be imported.*pip install 'meshrun\[cuda12\]'"):
        binding.visible_gpus("cuda")
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert binding.visible_gpus("auto") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidia0")
    assert binding.visible_gpus("auto") == 0
    assert "there is a GPU, but CuPy cannot be imported" in capsys.readouterr().err


# Steps that one rank does for all


def test_once_runs_on_rank_0_and_all_hear_its_value() -> None:
    calls: list[int] = []

    def rank_main(comm: ThreadComm) -> str:
        opened = open_world("cpu", control=comm)

        def look() -> str:
            calls.append(comm.rank)
            return "seen"

        return opened.on_root(look)

    assert run_ranks(3, rank_main) == ["seen"] * 3
    assert calls == [0]


@pytest.mark.parametrize("step", ["on_root", "collective_call", "gather_calls"])
def test_a_failure_of_one_is_raised_by_all(step: str) -> None:
    def rank_main(comm: ThreadComm) -> str:
        opened = open_world("cpu", control=comm)

        def fail() -> None:
            if step == "on_root" or comm.rank == 1:
                raise RunError(f"rank {comm.rank} failed", hint="again")

        with pytest.raises(RunError) as caught:
            getattr(opened, step)(fail)
        assert caught.value.everywhere
        return str(caught.value)

    expected = f"rank {0 if step == 'on_root' else 1} failed. Try: again"
    assert run_ranks(3, rank_main) == [expected] * 3


class Unpicklable(Exception):
    """Pickles, and cannot be made again of what it pickles to."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize("step", ["on_root", "collective_call", "gather_calls"])
@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (ValueError("no such gain"), ValueError, "no such gain"),
        (FileNotFoundError(2, "No such file", "a.npy"), FileNotFoundError, "No such file: 'a.npy'"),
        (SystemExit("I leave"), SystemExit, "I leave"),
        (Unpicklable("cut", "paste"), RunError, "Unpicklable: cut and paste"),
        (ValueError(threading.Lock()), RunError, "ValueError: <unlocked"),
    ],
)
def test_a_failure_that_is_not_ours_is_raised_by_all(
    step: str, failure: BaseException, kind: type[BaseException], words: str
) -> None:
    def rank_main(comm: ThreadComm) -> str:
        opened = open_world("cpu", control=comm)

        def fail() -> None:
            if step == "on_root" or comm.rank == 1:
                raise failure

        with pytest.raises(kind, match=words) as caught:
            getattr(opened, step)(fail)
        assert is_met_by_all(caught.value)
        assert "in fail\n" in traceback_of(caught.value)
        return describe(caught.value)

    (told,) = set(run_ranks(3, rank_main))
    assert told.startswith(f"[rank {0 if step == 'on_root' else 1}, host ")
    assert "test_world.py:" in told, "where it was raised, on ranks that have not raised it too"


@pytest.mark.parametrize("step", ["on_root", "collective_call"])
def test_a_rank_alone_raises_its_own_failure(step: str) -> None:
    failure = ValueError(threading.Lock())

    def fail() -> None:
        raise failure

    with pytest.raises(ValueError, match="unlocked") as caught:
        getattr(open_world("cpu"), step)(fail)
    assert caught.value is failure


def test_a_collective_call_gives_each_rank_its_own_value() -> None:
    def rank_main(comm: ThreadComm) -> int:
        return open_world("cpu", control=comm).collective_call(lambda: comm.rank)

    assert run_ranks(3, rank_main) == [0, 1, 2]


def test_a_world_is_closed_at_the_end_of_its_block_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ThreadComm] = []

    def close(self: ThreadComm) -> None:
        closed.append(self)

    monkeypatch.setattr(ThreadComm, "close", close)
    with open_world("cpu", control=ThreadComm()) as opened:
        assert opened.size == 1
        assert closed == []
    assert len(closed) == 1
    opened.close()
    assert len(closed) == 1
    with pytest.raises(ZeroDivisionError), open_world("cpu", control=ThreadComm()):
        _ = 1 / 0
    assert len(closed) == 2


def test_an_error_of_one_rank_in_a_block_ends_all(capsys: pytest.CaptureFixture[str]) -> None:
    def rank(control: ThreadComm) -> None:
        with open_world("cpu", control=control) as opened:
            if control.rank == 1:
                raise KeyError("mine alone")
            opened.control.barrier()

    with pytest.raises((KeyError, RunError)):
        run_ranks(2, rank, timeout=10)
    told = capsys.readouterr().err
    assert told.count("meshrun: [rank 1, ") == 1
    assert "Traceback" in told
    assert "mine alone" in told


def test_an_error_of_all_ranks_in_a_block_is_raised_on_all(capsys: pytest.CaptureFixture[str]) -> None:
    def rank(control: ThreadComm) -> str:
        with (
            pytest.raises(UserError, match="no axis") as caught,
            open_world("cpu", control=control) as opened,
        ):
            opened.collective_call(refuse)
        return str(caught.value)

    def refuse() -> None:
        raise UserError("no axis")

    assert run_ranks(2, rank, timeout=10) == ["no axis"] * 2
    assert capsys.readouterr().err == ""


def test_closing_ends_the_device_before_the_ranks() -> None:
    order: list[str] = []

    class Closing(ThreadComm):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def close(self) -> None:
            order.append(self.name)

    opened = open_world("cpu")
    opened.control, opened.arrays = Closing("control"), Closing("arrays")
    opened.close()
    assert order == ["arrays", "control"]
    order.clear()
    opened = open_world("cpu")
    opened.control = opened.arrays = Closing("control")
    opened.close()
    assert order == ["control"]

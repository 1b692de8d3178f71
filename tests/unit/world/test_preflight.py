"""Each fault that a preflight names, provoked in made facts; of a sound run it finds nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_survey import made

from meshrun.runner.system.launcher import Started
from meshrun.runner.world.preflight import host_checks
from meshrun.runner.world.preflight.checks import Problem, check_surveys
from meshrun.runner.world.preflight.problem import MAX_NAMES, describe_ranks
from meshrun.runner.world.preflight.survey import Interface, Port, Survey

GIB, MIB = 1 << 30, 1 << 20
NOTHING = Started()


def run(hosts: int = 2, per_host: int = 8, *, with_gpu: bool = True) -> list[Survey]:
    """The facts of a run that nothing is wrong with."""
    return [made(h, i, per_host, with_gpu=with_gpu) for h in range(hosts) for i in range(per_host)]


def but(surveys: list[Survey], ranks: Any, **fields: Any) -> list[Survey]:
    return [replace(one, **fields) if one.rank in ranks else one for one in surveys]


def but_gpu(surveys: list[Survey], ranks: Any, **fields: Any) -> list[Survey]:
    return [
        replace(one, gpu=replace(one.gpu, **fields)) if one.rank in ranks and one.gpu else one
        for one in surveys
    ]


def only(surveys: list[Survey], expected: Started = NOTHING) -> Problem:
    """The one problem that there is."""
    found = check_surveys(surveys, expected)
    assert len(found) == 1, [str(problem) for problem in found]
    assert found[0].hint
    return found[0]


# Nothing wrong.


@pytest.mark.parametrize(
    ("surveys", "expected"),
    [
        (run(), Started(ranks=16, hosts=2, per_host=8, network="eth0")),
        (run(), NOTHING),
        (run(1, 1), Started(ranks=1, hosts=1, per_host=1)),
        (run(3, 2, with_gpu=False), Started(ranks=6, hosts=3, per_host=2, network="eth0")),
        (run(64, 8), Started(ranks=512, hosts=64, per_host=8, network="eth0")),
    ],
)
def test_a_sound_run(surveys: list[Survey], expected: Started) -> None:
    assert check_surveys(surveys, expected) == []


# The plan.


@pytest.mark.parametrize(("asked", "there"), [(16, 8), (4, 8)])
def test_another_number_of_ranks(asked: int, there: int) -> None:
    found = only(run(1, there), Started(ranks=asked))
    assert found.what == "the launcher started a different number of ranks than planned"
    assert (found.got, found.expected) == (f"{there} on host n1", str(asked))
    assert found.ranks == tuple(range(there))
    assert not found.warning


@pytest.mark.parametrize(("asked", "there"), [(2, 1), (1, 2)])
def test_another_number_of_hosts(asked: int, there: int) -> None:
    found = only(run(there, 4), Started(hosts=asked))
    assert found.what == "the ranks are on a different number of hosts than planned"
    assert found.got == f"{there}: {'n1' if there == 1 else 'n1, n2'}"
    assert found.expected == str(asked)


def test_another_number_of_ranks_per_host() -> None:
    """Seven on one and one on the other, as srun -n 8 --gpus=8 places them."""
    surveys = [*run(1, 7), replace(made(1, 0, 7), rank=7)]
    found = only(surveys, Started(ranks=8, hosts=2, per_host=4))
    assert found.what == "hosts have a different number of ranks than planned"
    assert found.got == "7 per host on ranks 0-6 (host n1); 1 per host on rank 7 (host n2)"
    assert found.ranks == tuple(range(8))


def test_hosts_with_different_numbers_of_ranks_as_planned() -> None:
    surveys = [*run(1, 7), replace(made(1, 0, 7), rank=7)]
    assert check_surveys(surveys, Started(ranks=8, hosts=2, per_host=(7, 1), network="eth0")) == []
    found = only(surveys, Started(ranks=8, hosts=2, per_host=(6, 2)))
    assert (found.got, found.expected) == (
        "7 per host on ranks 0-6 (host n1); 1 per host on rank 7 (host n2)",
        "6, 2 on the hosts in this order",
    )
    found = only(surveys, Started(ranks=8, hosts=2, per_host=(7, 2)))
    assert found.ranks == (7,)


def test_only_the_host_that_is_wrong_is_named() -> None:
    found = only(run(3, 4)[:-1], Started(per_host=4))
    assert found.got == "3 per host on ranks 8-10 (host n3)"
    assert found.ranks == (8, 9, 10)


# Hosts' identities.


def test_two_hosts_with_one_identity() -> None:
    """A virtual machine and its clone: one hostname, one boot id; the addresses tell."""
    clones = [replace(one, host="n1", host_id="n1/boot0") for one in run(2, 2)]
    found = only(clones)
    assert found.what == "two hosts or network namespaces have the same identity (host n1)"
    assert found.got == "eth0=10.0.0.1 on ranks 0-1 (host n1); eth0=10.0.1.1 on ranks 2-3 (host n1)"
    assert "NCCL_HOSTID" in found.hint
    assert not found.warning


def test_an_interface_without_an_address_identifies_nobody() -> None:
    """Containers' interfaces come and go while ranks look."""
    surveys = run()
    passing = (*surveys[3].interfaces, Interface("veth1a2b", "", True))
    assert check_surveys(but(surveys, [3], interfaces=passing), NOTHING) == []


def test_two_hosts_with_one_name_only_warn() -> None:
    named = [replace(one, host="localhost") for one in run(2, 2)]
    found = only(named, Started(hosts=2))
    assert found.what == "different hosts have the same name"
    assert found.got == "localhost on 2 hosts, ranks 0-3 (hosts localhost, localhost)"
    assert "boot id" in found.hint
    assert found.warning


# GPUs.


def test_two_ranks_on_one_gpu() -> None:
    shared = but_gpu(run(2, 4), [6], uuid="GPU-0001-0", bus_id="0000:10:00.0")
    found = only(shared)
    assert found.what == "two ranks are bound to one GPU"
    assert found.got == "GPU-0001-0 (bus 0000:10:00.0) on ranks 4, 6 (host n2)"
    assert found.ranks == (4, 6)
    assert check_surveys(shared, NOTHING, oversubscribe=True) == []


def test_a_gpu_of_the_same_name_on_another_host_is_another_one() -> None:
    """Device numbers, bus ids, and even UUIDs of a simulated one: what counts is host and UUID."""
    assert check_surveys(but_gpu(run(2, 1), [0, 1], uuid="GPU-x"), NOTHING) == []


def test_more_ranks_than_gpus() -> None:
    crowded = but_gpu(run(2, 2), [2, 3], on_host=1, uuid="GPU-0001-0", bus_id="0000:10:00.0")
    found = only(crowded)
    assert found.what == "more ranks than GPUs on a host"
    assert found.got == "2 ranks for 1 GPU(s) on ranks 2-3 (host n2)"
    assert "--oversubscribe" in found.hint
    assert check_surveys(crowded, NOTHING, oversubscribe=True) == []


def test_ranks_that_were_given_one_gpu_each_are_not_too_many() -> None:
    """Each in a cgroup that shows it one GPU of the host's."""
    assert check_surveys(but_gpu(run(), range(16), on_host=1), NOTHING) == []


def test_without_nvml_two_ranks_on_one_gpu_are_found() -> None:
    blind = but_gpu(run(1, 2), [0, 1], on_host=None, uuid="GPU-x")
    assert only(blind).what == "two ranks are bound to one GPU"


def test_ranks_without_a_gpu_beside_others() -> None:
    found = only(but(run(2, 2), [2, 3], gpu=None, nccl=None))
    assert found.what == "some ranks have no GPU, others have one"
    assert found.got == "none on ranks 2-3 (host n2)"


# Versions.


@pytest.mark.parametrize(
    ("field", "value", "name", "warning"),
    [
        ("meshrun", "0.2.0", "meshrun", False),
        ("mpi", "Open MPI v4.1.4", "the MPI library", False),
        ("nccl", ("2.27.3", "/lib/libnccl.so.2"), "NCCL", False),
        ("python", "3.12.1", "Python", True),
        ("cuda", "13.0", "the CUDA runtime", False),
        ("driver", "570.1", "the NVIDIA driver", True),
    ],
)
def test_versions_that_differ(field: str, value: Any, name: str, warning: bool) -> None:
    change = but_gpu if field in ("cuda", "driver") else but
    found = only(change(run(), [3, 9], **{field: value}))
    assert found.what == f"ranks have different versions of {name}"
    text = value[0] if isinstance(value, tuple) else value
    assert found.got.endswith(f"; {text} on ranks 3, 9 (hosts n1, n2)")
    assert " on ranks 0-2, 4-8, 10-15 (hosts n1, n2)" in found.got
    assert found.ranks == (3, 9)
    assert found.warning == warning


def test_one_version_of_nccl_in_two_places_is_one() -> None:
    assert check_surveys(but(run(), [3], nccl=("2.28.9", "/elsewhere/libnccl.so.2")), NOTHING) == []


@pytest.mark.parametrize("field", ["driver", "cuda"])
def test_a_version_that_is_not_known_is_not_another_one(field: str) -> None:
    assert check_surveys(but_gpu(run(), [3], **{field: ""}), NOTHING) == []


# Settings.


def test_settings_that_were_not_forwarded_are_one_problem() -> None:
    """All of them on the first host alone: Open MPI forwards none by itself."""
    surveys = but(run(), range(8), settings={"NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Ring", "UCX_TLS": "tcp"})
    found = only(surveys)
    assert found.what == "ranks have different settings of NCCL_ALGO, UCX_TLS"
    assert found.got == ("NCCL_ALGO=Ring UCX_TLS=tcp on ranks 0-7 (host n1); not set on ranks 8-15 (host n2)")
    assert "-x" in found.hint
    assert not found.warning


def test_a_value_that_differs() -> None:
    surveys = but(run(), [5], settings={"NCCL_IB_HCA": "mlx5", "FI_PROVIDER": "tcp"})
    found = only(but(surveys, [6], settings={"NCCL_IB_HCA": "mlx5", "FI_PROVIDER": "efa"}))
    assert found.what == "ranks have different settings of FI_PROVIDER"
    assert found.got == (
        "not set on ranks 0-4, 7-15 (hosts n1, n2); FI_PROVIDER=tcp on rank 5 (host n1); "
        "FI_PROVIDER=efa on rank 6 (host n1)"
    )
    assert found.ranks == (5, 6)


def test_an_empty_value_is_a_value() -> None:
    found = only(but(run(), [5], settings={"NCCL_IB_HCA": "mlx5", "NCCL_PROTO": ""}))
    assert "NCCL_PROTO= on rank 5" in found.got


@pytest.mark.parametrize("name", ["NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE"])
def test_what_must_differ_may(name: str) -> None:
    surveys = [replace(one, settings={**one.settings, name: str(one.rank)}) for one in run()]
    assert check_surveys(surveys, NOTHING) == []


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"])
def test_names_of_hardware_and_printing_only_warn(name: str) -> None:
    found = only([replace(one, settings={name: f"x{one.rank // 8}"}) for one in run()])
    assert found.what == f"ranks have different settings of {name}"
    assert found.warning


def test_failures_come_before_warnings() -> None:
    surveys = but_gpu([replace(one, host="localhost") for one in run()], [5], nvlinks_up=17)
    assert [problem.warning for problem in check_surveys(surveys, Started(ranks=4))] == [False, False, True]


# The network chosen.


def with_network(name: str, address: str, up: bool) -> tuple[Interface, ...]:
    return (Interface("lo", "127.0.0.1", True), Interface(name, address, up))


@pytest.mark.parametrize(
    ("there", "got"),
    [
        (with_network("ib1", "10.1.0.1", True), "missing (there are: ib1) on host n2"),
        (with_network("eth0", "10.0.1.1", False), "down on host n2"),
        (with_network("eth0", "", True), "up, without an address on host n2"),
        ((Interface("lo", "127.0.0.1", True),), "missing (there are: none) on host n2"),
    ],
)
def test_a_host_without_the_network(there: tuple[Interface, ...], got: str) -> None:
    surveys = but(run(), range(8, 16), interfaces=there)
    found = only(surveys, Started(network="eth0"))
    assert found.what == "hosts cannot be reached on the chosen network, eth0"
    assert found.got == got
    assert found.ranks == tuple(range(8, 16))
    assert not found.warning
    assert check_surveys(surveys, NOTHING) == []  # nobody chose it


def test_a_bridge_that_has_one_address_everywhere() -> None:
    surveys = [
        replace(one, interfaces=(*one.interfaces, Interface("docker0", "172.17.0.1", True))) for one in run()
    ]
    found = only(surveys, Started(network="docker0"))
    assert found.what == "hosts have the same address on the chosen network, docker0"
    assert found.got == "172.17.0.1 on hosts n1, n2"


# Memory.


@pytest.mark.parametrize(
    ("ranks", "mpi", "total", "fails"),
    [
        (8, "MPICH Version: 5.0.2", 48, True),
        (8, "MPICH Version: 5.0.2", 64, False),
        (4, "MPICH Version: 5.0.2", 1, True),
        (8, "Intel(R) MPI Library 2021.18", 48, True),
        (8, "Open MPI v5.0.11", 1, False),  # warns by itself, and goes on
        (1, "MPICH Version: 5.0.2", 0, False),
    ],
)
def test_shared_memory_of_mpi(ranks: int, mpi: str, total: int, fails: bool) -> None:
    surveys = run(1, ranks, with_gpu=False)
    surveys = but(surveys, range(ranks), mpi=mpi, shm_total=total * MIB, shm_free=total * MIB)
    if not fails:
        assert check_surveys(surveys, NOTHING) == []
        return
    found = only(surveys)
    assert found.what == "/dev/shm is too small for the ranks on a host"
    assert found.got == f"{total} MiB, {total} MiB of it free, on ranks 0-{ranks - 1} (host n1)"
    assert found.expected == f"{8 * ranks} MiB: MPICH takes up to 8 MiB per rank"
    assert "--shm-size" in found.hint
    assert not found.warning


@pytest.mark.parametrize(
    ("free", "expected", "warning"),
    [
        (64, "80 MiB: NCCL takes 10 MiB per rank at least", False),  # what a container gets
        (79, "80 MiB: NCCL takes 10 MiB per rank at least", False),
        (80, "352 MiB: NCCL may take 44 MiB per rank", True),
        (351, "352 MiB: NCCL may take 44 MiB per rank", True),
        (352, None, False),
    ],
)
def test_shared_memory_of_nccl(free: int, expected: str | None, warning: bool) -> None:
    """Of what is free, not of all there is: an aborted run leaves its segments."""
    surveys = but(run(), range(8, 16), shm_free=free * MIB)
    if expected is None:
        assert check_surveys(surveys, NOTHING) == []
        return
    found = only(surveys)
    assert (found.expected, found.warning) == (expected, warning)
    assert found.got == f"65536 MiB, {free} MiB of it free, on ranks 8-15 (host n2)"
    assert found.ranks == tuple(range(8, 16))


def test_one_gpu_rank_on_a_host_needs_no_shared_memory() -> None:
    assert check_surveys(but(run(2, 1), range(2), shm_total=0, shm_free=0), NOTHING) == []


def test_no_shared_memory_at_all() -> None:
    found = only(but(run(1, 2), range(2), shm_total=0, shm_free=0))
    assert found.got == "none on ranks 0-1 (host n1)"


@pytest.mark.parametrize(("limit", "warning"), [(64 * 1024, False), (8 * MIB, False), (512 * MIB, True)])
def test_locked_memory(limit: int, warning: bool) -> None:
    surveys = but(run(), [3, 9], memlock=limit)
    found = only(surveys)
    assert found.what == "the limit on locked memory is low for InfiniBand or RoCE"
    assert found.got == f"{limit // 1024} KiB on ranks 3, 9 (hosts n1, n2)"
    assert "IPC_LOCK" in found.hint
    assert found.warning == warning


@pytest.mark.parametrize(
    "surveys",
    [
        but(run(), range(16), memlock=GIB),
        but(run(1, 8), range(8), memlock=65536),  # nothing to reach over it
        but(run(), range(16), memlock=65536, ports=()),
        but(run(), range(16), memlock=65536, ports=(Port("mlx5_0", 1, "DOWN", 10.0, "InfiniBand"),)),
    ],
    ids=["enough", "one host", "no InfiniBand", "port down"],
)
def test_locked_memory_that_is_no_problem(surveys: list[Survey]) -> None:
    assert check_surveys(surveys, NOTHING) == []


# Links of GPUs.


def test_nvlinks_down() -> None:
    found = only(but_gpu(run(), [3, 9], nvlinks_up=16))
    assert found.what == "NVLinks are down"
    assert found.got == "16 of 18 up on ranks 3, 9 (hosts n1, n2)"
    assert found.ranks == (3, 9)
    assert not found.warning


def test_all_nvlinks_of_one_gpu_down() -> None:
    assert only(but_gpu(run(), [3], nvlinks_up=0)).got == "0 of 18 up on rank 3 (host n1)"
    assert only(but_gpu(run(), [3], nvlinks_up=0, nvlinks=0)).got == "0 of 18 up on rank 3 (host n1)"


def test_the_same_nvlinks_down_everywhere() -> None:
    found = only(but_gpu(run(), range(16), nvlinks_up=16))
    assert found.got == "16 of 18 up on ranks 0-15 (hosts n1, n2)"
    assert not found.warning


@pytest.mark.parametrize("name", ["NVIDIA H100 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe"])
def test_cards_joined_by_fewer_bridges_than_they_have_sockets_for(name: str) -> None:
    surveys = but_gpu(run(), range(16), nvlinks_up=12, name=name)
    assert only(surveys).warning
    assert not only(but_gpu(surveys, [3], nvlinks_up=8)).warning


@pytest.mark.parametrize(("up", "links"), [(0, 18), (0, 0), (None, None)])
def test_gpus_without_nvlink(up: int | None, links: int | None) -> None:
    assert check_surveys(but_gpu(run(), range(16), nvlinks_up=up, nvlinks=links), NOTHING) == []


def test_gpus_of_two_models_have_links_of_their_own_number() -> None:
    mixed = but_gpu(run(), range(8), name="NVIDIA A100-SXM4-80GB", nvlinks_up=12, nvlinks=12)
    assert check_surveys(mixed, NOTHING) == []


def test_pcie_lanes_missing() -> None:
    found = only(but_gpu(run(), [3], pcie_width=8))
    assert found.what == "GPUs use fewer PCIe lanes than they support"
    assert found.got == "x8 of x16 on rank 3 (host n1)"
    assert not found.warning


def test_a_lower_pcie_generation_only_warns() -> None:
    found = only(but_gpu(run(), [3, 4], pcie_generation=1))
    assert found.got == "generation 1 of 5 on ranks 3-4 (host n1)"
    assert found.warning


@pytest.mark.parametrize("field", ["pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max"])
def test_a_link_that_nvml_does_not_tell_is_not_judged(field: str) -> None:
    assert check_surveys(but_gpu(run(), [3], **{field: None}), NOTHING) == []


# Binding.


def test_a_single_core() -> None:
    found = only(but(run(), [0, 1], one_core=True))
    assert found.what.startswith("ranks are bound to a single core")
    assert found.got == "ranks 0-1 (host n1)"
    assert found.warning


def test_cores_of_another_node() -> None:
    found = only(but(run(), [0, 8], cpus=(50, 51), numa=(1,)))
    assert found.got == "GPU on NUMA node 0, cores on 1 on ranks 0, 8 (hosts n1, n2)"
    assert found.warning


@pytest.mark.parametrize(
    ("cpus", "numa", "warned"), [((50,), (1,), True), ((0, 50), (0, 1), False), ((50,), (), False)]
)
def test_cores_by_their_nodes_where_nvml_names_none(
    cpus: tuple[int, ...], numa: tuple[int, ...], warned: bool
) -> None:
    surveys = but_gpu(but(run(), [0], cpus=cpus, numa=numa), [0], cpus=())
    assert bool(check_surveys(surveys, NOTHING)) == warned


def test_some_cores_near_are_enough() -> None:
    assert check_surveys(but(run(), range(16), cpus=tuple(range(96)), numa=(0, 1)), NOTHING) == []


# Words.


def test_a_problem_is_a_sentence() -> None:
    problem = Problem("this is wrong", got="3", expected="4", hint="four", ranks=(0,))
    assert str(problem) == "this is wrong: got 3, expected 4. Try: four"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3 (host n1)"),
        ([0, 1, 2, 3, 16], "ranks 0-3, 16 (hosts n1, n3)"),
        (range(64), "ranks 0-63 (hosts n1, n2, n3, n4 and 4 more)"),
    ],
)
def test_who(ranks: Any, text: str) -> None:
    assert describe_ranks([one for one in run(8, 8) if one.rank in ranks]) == text


def everything(survey: Survey) -> Survey:
    """Of a rank that everything is wrong with, and differently on each."""
    assert survey.gpu is not None
    wrong = replace(
        survey.gpu,
        driver=f"570.{survey.rank}",
        cuda=f"13.{survey.rank}",
        nvlinks_up=survey.rank % 17,
        pcie_width=survey.rank % 15,
        pcie_generation=survey.rank % 5,
        cpus=(999,),
    )
    return replace(
        survey,
        gpu=wrong,
        nccl=(f"2.{survey.rank}", "/lib"),
        mpi=f"MPICH {survey.rank}",
        meshrun=f"0.{survey.rank}",
        python=f"3.{survey.rank}",
        one_core=True,
        interfaces=(Interface("eth1", f"10.1.0.{survey.rank}", True),),
        memlock=survey.rank * 1024,
        shm_free=survey.rank * MIB // 8,
        shm_total=survey.rank * MIB // 8,
        settings={name: str(survey.rank) for name in ("NCCL_ALGO", "NCCL_PROTO", "UCX_TLS", "NCCL_DEBUG")},
    )


@given(st.sets(st.integers(0, 511), min_size=1))
def test_512_ranks_give_a_short_line_for_each_kind_of_problem(wrong: set[int]) -> None:
    surveys = [everything(one) if one.rank in wrong else one for one in run(64, 8)]
    found = check_surveys(surveys, Started(ranks=500, hosts=60, per_host=7, network="eth0"))
    kinds = [(re.sub(r"\d+", "N", problem.what), problem.warning) for problem in found]
    assert len(kinds) == len(set(kinds))
    assert len(kinds) < 24
    assert max(len(str(problem)) for problem in found) < 1500
    for problem in found:
        assert "\n" not in str(problem)
        assert problem.ranks == tuple(sorted(set(problem.ranks)))


@given(st.permutations(run(2, 3)), st.sets(st.integers(0, 5)))
def test_the_order_of_the_facts_does_not_matter(surveys: list[Survey], wrong: set[int]) -> None:
    def found(of: list[Survey]) -> list[tuple[str, tuple[int, ...]]]:
        changed = but_gpu(but(of, wrong, meshrun="0.2", one_core=True), wrong, pcie_width=8, nvlinks_up=1)
        return [
            (problem.what, problem.ranks)
            for problem in check_surveys(changed, Started(ranks=5, hosts=3, per_host=2, network="eth0"))
        ]

    assert found(surveys) == found(sorted(surveys, key=lambda one: one.rank))


@given(st.sets(st.integers(0, 15), min_size=1, max_size=7))
def test_the_ranks_named_are_those_that_are_wrong(wrong: set[int]) -> None:
    """The lesser part is taken for the wrong one."""
    assert set(only(but(run(), wrong, meshrun="0.2")).ranks) == wrong
    assert set(only(but_gpu(run(), wrong, pcie_width=4)).ranks) == wrong
    assert set(only(but(run(), wrong, settings={"NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Tree"})).ranks) == wrong


def test_long_lists_are_cut() -> None:
    surveys = [replace(one, meshrun=f"0.{one.rank}") for one in run()]
    assert only(surveys).got.endswith(f"and {16 - MAX_NAMES} more")


def test_what_is_wanted_of_memory_is_ordered() -> None:
    assert host_checks.NCCL_SHM < host_checks.NCCL_SHM_ROOMY
    assert host_checks.MEMLOCK < host_checks.MEMLOCK_ROOMY

"""The table of all ranks' facts: golden texts, and that any facts fit."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import made_survey
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.world.preflight.rank_table import LINES, WIDTH, render, rows
from meshrun.runner.world.preflight.survey import GpuFacts, Interface, Port, Survey, survey
from meshrun.runner.world.world import single_rank_world

GIB = 1 << 30


def made(host: int, local: int, per_host: int) -> Survey:
    """With more to show, on hosts of two NUMA nodes."""
    sound = made_survey.made(host, local, per_host)
    assert sound.gpu is not None
    cores = tuple(range(48 * (local % 2), 48 * (local % 2) + 48))
    device = replace(
        sound.gpu,
        uuid=f"GPU-{host:04x}{local:04x}-1111-2222-3333-444444444444",
        on_host=per_host,
        numa_node=local % 2,
        cpus=cores,
    )
    return replace(
        sound,
        gpu=device,
        visible="0,1",
        nccl=("2.28.9", "/opt/venv/lib/libnccl.so.2"),
        cpus=cores,
        numa=(local % 2,),
        interfaces=(
            Interface("lo", "127.0.0.1", True),
            Interface("eth0", f"10.0.{host}.1", True, 100000 if local == 0 else None),
            Interface("ib0", "", True),
            Interface("eth1", "", False),
        ),
        ports=tuple(Port(f"mlx5_{i}", 1, "ACTIVE", 400.0, "InfiniBand") for i in range(2))
        if local == 0
        else (),
        memlock=8 << 20 if host else None,
        shm_free=60 * GIB - local * GIB,
        settings={"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN"},
    )


def run(hosts: int, per_host: int) -> list[Survey]:
    return [made(host, local, per_host) for host in range(hosts) for local in range(per_host)]


def without_gpu(surveys: list[Survey]) -> list[Survey]:
    return [replace(one, gpu=None, nccl=None, visible=None) for one in surveys]


GOLDEN = """\
4 ranks on 2 hosts
meshrun     0.1.0
Python      3.11.7
MPI         Open MPI v5.0.11
GPU         NVIDIA H200
driver      580.95.05 (runs CUDA up to 13.0)
CUDA        12.9
NCCL        2.28.9 (/opt/venv/lib/libnccl.so.2)
settings    NCCL_ALGO=Ring, NCCL_DEBUG=WARN

host  rank  local  bus id        UUID          NVLink  PCIe   visible  cores  NUMA
n1       0      0  0000:10:00.0  GPU-00000000  18/18   5 x16  0,1      0-47   0
n1       1      1  0000:11:00.0  GPU-00000001  18/18   5 x16  0,1      48-95  1
n2       2      0  0000:10:00.0  GPU-00010000  18/18   5 x16  0,1      0-47   0
n2       3      1  0000:11:00.0  GPU-00010001  18/18   5 x16  0,1      48-95  1

host n1
  /dev/shm  64 GiB, 59 GiB free
  memlock   unlimited
  network   eth0 10.0.0.1 up 100 Gb/s, ib0 up, without address and down: eth1
  RDMA      InfiniBand ACTIVE 400 Gb/s: mlx5_0:1, mlx5_1:1
host n2
  /dev/shm  64 GiB, 59 GiB free
  memlock   8 MiB
  network   eth0 10.0.1.1 up 100 Gb/s, ib0 up, without address and down: eth1
  RDMA      InfiniBand ACTIVE 400 Gb/s: mlx5_0:1, mlx5_1:1
"""

GOLDEN_CPU = """\
2 ranks on 1 host
meshrun     0.1.0
Python      3.11.7
MPI         Open MPI v5.0.11
GPU         none
driver      none
CUDA        none
NCCL        none
settings    none

host  rank  local  bus id  UUID  NVLink  PCIe  visible  cores         NUMA
n1       0      0  none    none  none    none  not set  0-47          0
n1       1      1  none    none  none    none  empty    5 (one core)  1

host n1
  /dev/shm  none
  memlock   64 KiB
  network   none
  RDMA      none
"""


def test_a_run_on_gpus() -> None:
    assert render(run(2, 2)) == GOLDEN


def test_a_run_on_cpus() -> None:
    first, second = without_gpu(run(1, 2))
    bare = {"settings": {}, "interfaces": (), "ports": (), "shm_total": 0, "shm_free": 0, "memlock": 65536}
    second = replace(second, cpus=(5,), one_core=True, visible="")
    assert render([replace(first, **bare), replace(second, **bare)]) == GOLDEN_CPU


def line(text: str, start: str) -> str:
    return next(one for one in text.splitlines() if one.startswith(start))


def test_what_differs_says_who_has_what() -> None:
    first, *others = run(2, 2)
    assert first.gpu
    first = replace(
        first,
        mpi="MPICH 5.0.2",
        nccl=("2.27.3", "/lib/libnccl.so.2"),
        gpu=replace(first.gpu, driver="", cuda=""),
        settings={},
    )
    text = render([first, *others])
    assert line(text, "MPI ").split(maxsplit=1)[1] == (
        "Open MPI v5.0.11 on ranks 1-3 (hosts n1, n2); MPICH 5.0.2 on rank 0 (host n1)"
    )
    assert "2.27.3 (/lib/libnccl.so.2) on rank 0 (host n1)" in " ".join(text.split())
    assert "unknown (runs CUDA up to 13.0) on rank 0 (host n1)" in " ".join(text.split())
    assert line(text, "CUDA ").endswith("unknown on rank 0 (host n1)")
    assert "NCCL_ALGO=Ring on ranks 1-3 (hosts n1, n2); (not set) on rank 0 (host n1)" in " ".join(
        text.split()
    )


def test_what_is_wrong_with_a_gpu_is_in_its_line() -> None:
    first, second = run(1, 2)
    assert first.gpu
    assert second.gpu
    bad = replace(
        first,
        gpu=replace(first.gpu, nvlinks_up=16, pcie_generation=1, pcie_width=8, numa_node=3),
        numa=(0, 1),
    )
    blind = replace(second, gpu=GpuFacts("NVIDIA H200", "GPU-x", "0000:11:00.0", 1), numa=())
    told = [one.split("  ") for one in render([bad, blind]).splitlines() if one.startswith("n1")]
    cells = [[cell.strip() for cell in one if cell.strip()] for one in told]
    assert cells[0][5:7] == ["16/18", "1 x8 of 5 x16"]
    assert cells[0][-1] == "0-1, GPU 3"
    assert cells[1][5:7] == ["unknown", "unknown"]
    assert cells[1][-1] == "unknown"


def test_a_gpu_without_nvlink() -> None:
    (one,) = run(1, 1)
    assert one.gpu
    text = render([replace(one, gpu=replace(one.gpu, nvlinks=0, nvlinks_up=0))])
    assert line(text, "n1").split()[5] == "none"


def test_many_hosts_that_are_alike_are_shown_once() -> None:
    text = render([replace(one, memlock=None) for one in run(64, 8)])
    assert len(text.splitlines()) < 30
    assert "  alike: hosts n2, n3, n4, n5 and 59 more, ranks 8-511" in text.splitlines()
    assert "hosts n1, n2, n3, n4 and 60 more; addresses and free memory are those of n1" in text.splitlines()
    assert "10.0.0.1" in text
    assert "10.0.1.1" not in text


def test_the_host_that_is_not_alike_is_shown() -> None:
    surveys = [replace(one, memlock=None) for one in run(64, 8)]
    odd = surveys[100]
    assert odd.gpu
    surveys[100] = replace(odd, gpu=replace(odd.gpu, nvlinks_up=17))
    text = render(surveys)
    assert sum(one.startswith("n1 ") for one in text.splitlines()) == 8
    assert sum(one.startswith("n13 ") for one in text.splitlines()) == 8
    assert "ranks 8-95, 104-511" in text


def test_long_names_of_hosts_that_are_alike_are_wrapped() -> None:
    surveys = [replace(one, host=f"{one.host}.{'x' * 40}.cluster.example", memlock=None) for one in run(8, 8)]
    text = render(surveys)
    assert "  alike: hosts n2." in text
    assert max(len(one) for one in text.splitlines()) <= WIDTH


def test_few_ranks_are_all_shown() -> None:
    surveys = run(LINES // 8, 8)
    assert sum(one.startswith("n") for one in render(surveys).splitlines()) == LINES
    assert "alike" not in render(surveys).partition("\n\nhost")[0]


def test_least_memory_of_a_host_counts() -> None:
    first, second = run(1, 2)
    text = render([replace(first, memlock=None, shm_free=GIB), replace(second, memlock=65536)])
    assert line(text, "  /dev/shm").endswith("64 GiB, 1 GiB free")
    assert line(text, "  memlock").endswith("64 KiB")


def test_ports_of_a_kind_are_together() -> None:
    (one,) = run(1, 1)
    odd = (Port("mlx5_7", 1, "DOWN", None, "InfiniBand"), Port("mlx5_8", 2, "ACTIVE", 100.0, "Ethernet"))
    assert " ".join(render([replace(one, ports=(*one.ports, *odd))]).split()).endswith(
        "RDMA InfiniBand ACTIVE 400 Gb/s: mlx5_0:1, mlx5_1:1; InfiniBand DOWN unknown: mlx5_7:1; "
        "Ethernet ACTIVE 100 Gb/s: mlx5_8:2"
    )


def test_rows_are_plain_values() -> None:
    surveys = run(2, 2)
    read = json.loads(json.dumps(rows(surveys)))
    assert [row["rank"] for row in read] == [0, 1, 2, 3]
    assert set(read[0]) == {field.name for field in dataclasses.fields(Survey)}
    assert read[1]["gpu"]["uuid"] == "GPU-00000001-1111-2222-3333-444444444444"
    assert read[0]["ports"][0] == {
        "device": "mlx5_0",
        "port": 1,
        "state": "ACTIVE",
        "rate_gbit": 400.0,
        "link_layer": "InfiniBand",
    }


def test_this_machine() -> None:
    here = survey(single_rank_world(CpuBackend()).here)
    assert "GPU         none" in render([here]).splitlines()
    json.dumps(rows([here]))


WORD = st.text(st.characters(codec="ascii", min_codepoint=33), max_size=120)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "host": WORD.filter(bool),
                "mpi": WORD,
                "visible": st.none() | WORD,
                "cpus": st.sets(st.integers(0, 511), min_size=1).map(sorted).map(tuple),
                "numa": st.sets(st.integers(0, 31)).map(sorted).map(tuple),
                "settings": st.dictionaries(WORD, WORD, max_size=4),
                "nccl": st.none() | st.tuples(WORD, WORD),
                "interfaces": st.lists(
                    st.builds(Interface, WORD, WORD, st.booleans(), st.none() | st.integers(1, 800000))
                ).map(tuple),
                "memlock": st.none() | st.integers(0, 1 << 50),
                "one_core": st.booleans(),
            }
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_any_facts_fit(changes: list[dict[str, Any]], with_gpu: bool) -> None:
    surveys = [replace(one, **change) for one, change in zip(run(4, 2), changes, strict=False)]
    text = render(surveys if with_gpu else without_gpu(surveys))
    assert max(len(one) for one in text.splitlines()) <= WIDTH

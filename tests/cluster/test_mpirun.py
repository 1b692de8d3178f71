"""`meshrun launch mpirun` over real hosts, by ssh, with the MPI of this Python environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hosts import inside
from mpirun_site import EVERYONE, ROW, Site
from processes import DEADLOCK, launcher_problem, nightly, promised

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM

SILENT = 4  # --host-timeout
PROMISE = SILENT + 20  # seconds until a run ends when a host goes silent
STALLING = Path(__file__).parents[1] / "faults" / "stalling_job.py"
FOR_EVER = ("bench", "all_reduce", "-b", "64", "-e", "64K", "-f", "4", "-N", "0", "--device", "cpu")

pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


def on(process: subprocess.Popen[str]) -> int:
    """The command's own process: on the host, not the one that entered it."""
    found = inside(process)
    assert found is not None
    return found


@pytest.mark.mpi_library
def test_the_edge_filter_over_three_hosts(site: Site) -> None:
    array = np.random.default_rng(5).standard_normal((600, 700))
    np.save(site.notes / "in.npy", array)
    before = site.hosts.traffic()
    files = (str(site.notes / "in.npy"), str(site.notes / "out.npy"))
    done = site.run(
        "-j",
        "3x2",
        "--hosts",
        EVERYONE,
        "--",
        "run",
        "laplacian",
        *files,
        "--verify",
        "full",
        "--device",
        "cpu",
    )
    assert done.returncode == 0, done.stderr
    assert "6 ranks on 3 hosts" in done.stderr
    alone = str(site.notes / "alone.npy")
    subprocess.run([*PROGRAM, "run", "laplacian", files[0], alone, "--device", "cpu"], check=True)
    np.testing.assert_array_equal(np.load(files[1]), np.load(alone))
    assert "network: eth0" in done.stderr
    for name, (sent, received) in site.hosts.traffic().items():
        assert sent > before[name][0]
        assert received > before[name][1]
    site.nothing_is_left()


def test_bytes_cross_the_wires(site: Site) -> None:
    """At least what an all_reduce of 8 MiB must move, over eth0; and --wires counts it on every host."""
    before = site.hosts.traffic()
    done = site.run(
        "-j",
        "3x1",
        "--hosts",
        EVERYONE,
        "--",
        "bench",
        "all_reduce",
        "-b",
        "8M",
        "-e",
        "8M",
        "-n",
        "3",
        "--device",
        "cpu",
        "--wires",
        "-J",
        str(site.notes / "wires.json"),
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Rank +(\d) Group +0 Pid +\d+ on +(n\d)", done.stdout) == [
        ("0", "n1"),
        ("1", "n2"),
        ("2", "n3"),
    ]
    for name, (sent, _) in site.hosts.traffic().items():
        assert sent - before[name][0] > 3 * (8 << 20), name
    [row] = json.loads((site.notes / "wires.json").read_text())["results"]
    counted = {
        wire["owner"]: wire for wire in row["meshrun"]["in_place"]["traffic"] if wire["wire"] == "eth0"
    }
    assert [*counted] == ["n1", "n2", "n3"]
    least = 8 << 20  # of a ring each host sends 4/3 of it; of a tree some send it once
    for wire in counted.values():
        assert least <= max(wire["sent"], wire["received"]) < 4 * least


@pytest.mark.mpi_library
def test_a_hostfile_and_settings_reach_every_rank(site: Site) -> None:
    (site.notes / "hosts").write_text("n1 slots=2\nn3:2  # the other notation\n")
    words = ("--hostfile", str(site.notes / "hosts"), "-x", "NCCL_DEBUG=WARN", "-x", "UCX_LOG_LEVEL=error")
    words += ("-x", "NCCL_SOCKET_IFNAME=^docker0,lo")
    done = site.run(*words, "--", "doctor", "--json", str(site.notes / "facts.json"))
    assert done.returncode == 0, done.stderr
    ranks = json.loads((site.notes / "facts.json").read_text())["ranks"]
    assert [(rank["rank"], rank["host"], rank["local_rank"]) for rank in ranks] == [
        (0, "n1", 0), (1, "n1", 1), (2, "n3", 0), (3, "n3", 1)
    ]  # fmt: skip
    for rank in ranks:
        assert rank["settings"]["NCCL_DEBUG"] == "WARN"
        assert rank["settings"]["NCCL_SOCKET_IFNAME"] == "^docker0,lo"
        assert rank["settings"]["UCX_NET_DEVICES"] == "eth0"
        assert rank["settings"]["UCX_LOG_LEVEL"] == "error"
        assert not rank["one_core"]


@pytest.mark.parametrize("other", ["N2", "10.77.77.2"])
def test_a_host_under_two_names_is_refused_before_anything_starts(site: Site, other: str) -> None:
    done = site.run("-j", "2x1", "--hosts", f"{other},n2", "--", *FOR_EVER)
    assert done.returncode == 2
    assert f"meshrun: {other} and n2 are the same host, n2. Try: list each host once" in done.stderr
    assert "network:" not in done.stderr
    site.nothing_is_left()


def test_a_slow_wire_is_seen(site: Site) -> None:
    """n3's is limited: 1 MiB takes 0.2 s; the same exchange between n1 and n2 is many times faster."""
    site.hosts.rate("n3", "50mbit")
    seconds = {}
    for other in ("n2", "n3"):
        done = site.run(
            "-j",
            "2x1",
            "--hosts",
            f"n1,{other}",
            "--",
            "bench",
            "sendrecv",
            "-b",
            "1M",
            "-e",
            "1M",
            "-n",
            "3",
            "-w",
            "1",
            "--device",
            "cpu",
        )
        assert done.returncode == 0, done.stderr
        row = next(line for line in done.stdout.splitlines() if ROW.match(line))
        seconds[other] = float(row.split()[5])
    assert seconds["n3"] > 3 * seconds["n2"]


@pytest.mark.mpi_library
def test_a_host_without_power_is_named(site: Site) -> None:
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--host-timeout", str(SILENT), "--", *FOR_EVER)
    site.in_full_swing(process)
    site.hosts.power_off("n2")
    assert process.wait(DEADLOCK) == 1
    assert "host n2 no longer answers." in site.errors
    site.nothing_is_left(("n1", "n3"))


@pytest.mark.parametrize("fault", [nightly("frozen"), "unplugged"])
def test_a_host_that_goes_silent_is_named(site: Site, fault: str) -> None:
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--host-timeout", str(SILENT), "--", *FOR_EVER)
    site.in_full_swing(process)
    deadline = time.monotonic() + promised(PROMISE, site.begun)
    if fault == "frozen":
        site.hosts.freeze("n3")
    else:
        site.hosts.link("n3", up=False)
    assert process.wait(DEADLOCK) == 1
    assert time.monotonic() < deadline
    # Whoever notices first: this project's heartbeat, or Open MPI's ssh, after which n3 does not answer.
    assert re.search(rf"host n3 \(rank 2\) silent for {SILENT} s|host n3 no longer answers\.", site.errors)
    site.nothing_is_left(("n1", "n2"))


def test_a_stall_of_a_rank_on_another_host_is_explained(site: Site, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((4, 4)))
    job = ("run", f"{STALLING}:stalling", str(tmp_path / "in.npy"), "--fault=spin", "--rank=2")
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--", *job, before=("--stall-timeout=3",))
    assert process.wait(DEADLOCK) == 1
    assert re.search(
        r"stalled: rank 2 \(host n3, CPU\) has not .* at stalling_job.py:\d+ in spin", site.errors
    )
    assert re.search(r"ranks? 0.*: in ", site.errors)
    site.nothing_is_left()


@pytest.mark.mpi_library
def test_the_first_host_goes_silent(site: Site) -> None:
    """The command's own host is n1: its other ranks end by themselves."""
    words = ("-j", "2x1", "--hosts", "n2,n3", "--host-timeout", str(SILENT), "--", *FOR_EVER)
    process = site.begin(*words)
    site.in_full_swing(process)
    site.hosts.freeze("n2")
    assert process.wait(DEADLOCK) == 1
    assert "host n2" in site.errors
    site.nothing_is_left(("n1", "n3"))


@pytest.mark.mpi_library
@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM)])
def test_a_signal_ends_it_everywhere(site: Site, number: signal.Signals) -> None:
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--", *FOR_EVER)
    site.in_full_swing(process)
    os.kill(on(process), number)
    assert process.wait(DEADLOCK) == 128 + number
    assert f"interrupted by {number.name}: every rank has ended" in site.errors
    site.nothing_is_left()


@pytest.mark.mpi_library
def test_a_launcher_that_is_killed_leaves_nothing(site: Site) -> None:
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--", *FOR_EVER)
    site.in_full_swing(process)
    names = ("prterun", "mpiexec", "orterun", "mpirun")
    found = [pid for pid, line in site.hosts.processes("n1") if Path(line.split()[0]).name in names]
    assert found
    os.kill(found[0], signal.SIGKILL)
    assert process.wait(DEADLOCK) == 1
    site.nothing_is_left()


@pytest.mark.mpi_library
def test_a_rank_that_fails_is_told_once(site: Site) -> None:
    (site.notes / "bad.py").write_text(
        "import os, meshrun\n@meshrun.map_blocks()\ndef bad(block):\n"
        "    if os.uname().nodename == 'n3':\n        raise ValueError('planted')\n    return block\n"
    )
    np.save(site.notes / "in.npy", np.ones((64, 64)))
    files = (str(site.notes / "in.npy"), str(site.notes / "out.npy"))
    done = site.run(
        "-j", "3x1", "--hosts", EVERYONE, "--", "run", f"{site.notes}/bad.py:bad", *files, "--device", "cpu"
    )
    assert done.returncode == 1
    assert "[rank 2, host n3, CPU] ValueError: planted" in done.stderr
    assert done.stderr.count("planted") == 1
    assert not [path.name for path in site.notes.iterdir() if "out.npy" in path.name]
    site.nothing_is_left()


def test_a_mistake_on_all_ranks_is_told_once(site: Site) -> None:
    done = site.run(
        "-j", "3x1", "--hosts", EVERYONE, "--", "run", "laplacian", str(site.notes / "none.npy"), "out.npy"
    )
    assert done.returncode == 2
    assert done.stderr.count("none.npy") == 1
    site.nothing_is_left()


def test_hosts_that_do_not_answer_are_named_before_anything_starts(site: Site) -> None:
    site.hosts.power_off("n2")
    done = site.run("-j", "3x1", "--hosts", "n1,n2,nowhere", "--ssh-timeout", "2", "--", *FOR_EVER)
    assert done.returncode == 2
    assert re.search(r"no answer by ssh from n2 \(.+\), nowhere \(.*Could not resolve.*\)", done.stderr), (
        done.stderr
    )
    assert done.stdout == ""


def test_an_interface_that_is_not_there(site: Site) -> None:
    done = site.run("-j", "2x1", "--hosts", "n1,n2", "--network", "eth7", "--", "doctor")
    assert done.returncode == 2
    assert "there is no network interface eth7 on n1, n2: expected one of lo, eth0." in done.stderr


@pytest.mark.mpi_library
def test_this_launcher_is_the_one_that_is_tested() -> None:
    assert mpi_launcher.find().path.parent == Path(sys.prefix) / "bin"

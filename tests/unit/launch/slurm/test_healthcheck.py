"""slurm/healthcheck.sh and validate.sbatch, with a meshrun, Slurm, driver and syslog that are stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[4] / "slurm"
SCRIPT = SLURM / "healthcheck.sh"
NIC = "host c1, GPU 3: its NIC at 61 % of its siblings (29.1 of 48.0 GB/s, flows, 4 partners)"
CRITICAL = f"CRITICAL: {NIC}"
FINE = "8 ranks on 1 host; 4 of 7 rungs measured, no slow part found"
OK = f"OK: {FINE}"
IS_OK = f"meshrun: c1 is ok: {FINE}\n"
DRAINED = ["update", "nodename=c1", "state=drain", f"reason=meshrun: {NIC}"]

# As `scontrol show node` of Slurm 22.05 writes it.
NODE = """\
NodeName=c1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc={cpus} CPUEfctv=8 CPUTot=8 CPULoad=0.31
   AvailableFeatures=(null)
   Gres={gres}
   NodeAddr=127.0.0.1 NodeHostName=c1 Port=27606 Version=22.05.8
   RealMemory=4000 AllocMem=0 FreeMem=22674 Sockets=8 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   CfgTRES=cpu=8,mem=4000M,billing=8
   AllocTRES=
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
"""
REASON = "   Reason={reason} [root@2026-11-22T02:29:52]\n"

# Each notes its words, one call a line. meshrun: says what is in `said`, ends with `status`, after `act`.
PLAYERS = {
    "meshrun": """
        . "$PLAYED/act"
        [ ! -e "$PLAYED/errors" ] || cat "$PLAYED/errors" >&2
        cat "$PLAYED/said"
        exit "$(cat "$PLAYED/status")"
    """,
    "scontrol": """
        case $1 in
            show) cat "$PLAYED/node";;
            update) ! cat "$PLAYED/refusal" 2>/dev/null;;
        esac
    """,
    "nvidia-smi": """
        case $1 in -L) cat "$PLAYED/gpus";; *) cat "$PLAYED/pids";; esac
    """,
    "logger": "",
}


@dataclass
class Played:
    """What the players will do, and what they were told."""

    folder: Path

    def node(
        self, state: str = "IDLE", cpus: int = 0, gres: str = "gpu:h200:8(S:0,1)", reason: str = ""
    ) -> None:
        text = NODE.format(state=state, cpus=cpus, gres=gres)
        self.write("node", text + (REASON.format(reason=reason) if reason else ""))

    def verdict(self, line: str, status: int, *, errors: str = "", act: str = "") -> None:
        self.write("said", f"{line}\nladder ...\n" if line else "")
        self.write("status", str(status))
        self.write("errors", errors)
        self.write("act", act)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def told(self, player: str) -> list[list[str]]:
        calls = self.folder / f"{player}.calls"
        lines = calls.read_text().split("\n\n") if calls.exists() else []
        return [line.split("\n") for line in lines if line]

    @property
    def updates(self) -> list[list[str]]:
        return [words for words in self.told("scontrol") if words[0] == "update"]

    @property
    def logged(self) -> list[tuple[str, str]]:
        """Priorities and sentences."""
        return [(words[3].removeprefix("daemon."), words[-1]) for words in self.told("logger")]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{os.defpath}",
            "PLAYED": str(self.folder),
            "SLURMD_NODENAME": "c1",
            "MESHRUN_CONF": str(self.folder / "settings"),
            "MESHRUN_LOCK": str(self.folder / "lock"),
            "MESHRUN_STATE": str(self.folder / "state"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", SCRIPT, *words],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def played(tmp_path: Path) -> Played:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    for name, text in PLAYERS.items():
        program = tmp_path / "bin" / name
        note = f'printf "%s\\n" "$@" "" >>"$PLAYED/{name}.calls"'
        program.write_text(f"#!/bin/sh\n{note}\n{text}")
        program.chmod(stat.S_IRWXU)
    made = Played(tmp_path)
    made.node()
    made.verdict(OK, 0)
    made.write("gpus", "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})\n" for i in range(8)))
    made.write("pids", "")
    return made


JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}
AS: dict[str, Mapping[str, str]] = {
    "health check": {},
    "prolog": JOB,
    "epilog": {**JOB, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"},
    "before 20.11": {name: JOB[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_GPUS")},
}


@pytest.mark.parametrize("way", AS)
def test_a_healthy_node_stays(played: Played, way: str) -> None:
    done = played.run(**AS[way])
    assert (done.returncode, done.stdout, done.stderr) == (0, IS_OK, "")
    words = ["-n", "8", "validate", "--quick", "--rungs", "gpu,host,pairs,node"]
    assert played.told("meshrun") == [words]
    assert played.updates == []


def test_of_a_single_gpu_no_pairs_are_measured(played: Played) -> None:
    """A rung that is named and cannot be measured is unknown."""
    played.node(gres="gpu:1")
    played.write("gpus", "GPU 0: NVIDIA H200 (UUID: GPU-0)\n")
    assert played.run().returncode == 0
    assert played.told("meshrun") == [["-n", "1", "validate", "--quick", "--rungs", "gpu,host"]]


@pytest.mark.parametrize("way", AS)
def test_a_critical_node_is_drained_with_the_parts_name(played: Played, way: str) -> None:
    played.verdict(CRITICAL, 2)
    if AS[way]:
        played.node("ALLOCATED", cpus=8)
    done = played.run(**AS[way])
    assert done.returncode == (1 if AS[way] else 0), done.stderr
    assert played.updates == [DRAINED]
    assert played.logged == [("err", f"c1 is drained: {NIC}")]
    assert done.stdout == f"meshrun: c1 is drained: {NIC}\n"


@pytest.mark.parametrize("way", AS)
def test_a_warning_is_logged_and_never_drains(played: Played, way: str) -> None:
    played.verdict(f"WARNING: {NIC}", 1)
    assert played.run(**AS[way], MESHRUN_DRAIN_ON_UNKNOWN="1").returncode == 0
    assert played.updates == []
    assert played.logged == [("warning", f"c1: warning: {NIC}")]


UNKNOWN = {
    "said": ("UNKNOWN: GPU 3 was not measured", 3, "", "GPU 3 was not measured"),
    "ok, and a bad status": (OK, 2, "", "no verdict, exit status 2: "),
    "ok of nothing": ("", 0, "", "no verdict, exit status 0: "),
    "a good status, and a bad word": (CRITICAL, 0, "", "no verdict, exit status 0: "),
    "a word alone": ("ok", 0, "", "no verdict, exit status 0: "),
    "a word that begins so": ("Okay: fine", 0, "", "no verdict, exit status 0: "),
    "a wrong option": ("", 2, "Usage: meshrun\nError: No such option: --quick\n",
                       "no verdict, exit status 2: Error: No such option: --quick"),
    "a crash": ("", 139, "Segmentation fault\n", "no verdict, exit status 139: Segmentation fault"),
}  # fmt: skip


@pytest.mark.parametrize("way", AS)
@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_drains_only_where_that_is_wanted(played: Played, case: str, way: str) -> None:
    line, status, errors, sentence = UNKNOWN[case]
    played.verdict(line, status, errors=errors)
    assert played.run(**AS[way]).returncode == 0
    assert played.updates == []
    assert played.logged[-1] == ("err", f"c1: unknown: {sentence}")
    done = played.run(**AS[way], MESHRUN_DRAIN_ON_UNKNOWN="1")
    assert done.returncode == (1 if AS[way] else 0)
    plain = sentence.replace("'", "?")
    assert played.updates == [[*DRAINED[:3], f"reason=meshrun: unknown: {plain}"]]


def test_a_meshrun_that_is_missing_is_unknown(played: Played) -> None:
    played.run(MESHRUN="/nowhere/meshrun")
    ((priority, sentence),) = played.logged
    assert priority == "err"
    assert sentence.startswith("c1: unknown: no verdict, exit status 127: ")


@pytest.mark.parametrize("act", ["sleep 100\n", "trap '' TERM\nwhile :; do sleep 1; done\n"])
def test_a_meshrun_that_hangs_is_ended_and_unknown(played: Played, act: str) -> None:
    played.verdict(OK, 0, act=act + "touch $PLAYED/outlived\n")
    assert played.run(MESHRUN_SECONDS="14").returncode == 0
    ((priority, sentence),) = played.logged
    assert priority == "err"
    assert sentence in {f"c1: unknown: no verdict within {seconds} s" for seconds in (1, 2)}
    assert not (played.folder / "outlived").exists()


def test_what_outlives_meshrun_neither_delays_nor_locks_the_next(played: Played) -> None:
    played.verdict(OK, 0, act="setsid sleep 100 & echo $! >>$PLAYED/strays\n")
    for _ in range(2):
        assert played.run().stdout == IS_OK
    strays = [int(line) for line in (played.folder / "strays").read_text().split()]
    assert len(strays) == 2
    for stray in strays:
        os.kill(stray, signal.SIGKILL)  # which is still there: nobody waited for it


@pytest.mark.parametrize(
    ("state", "cpus", "why"),
    [
        ("MIXED", 4, "c1 has jobs"),
        ("ALLOCATED", 8, "c1 has jobs"),
        ("IDLE+COMPLETING", 0, "c1 is IDLE+COMPLETING"),
        ("IDLE+DRAIN", 0, "c1 is IDLE+DRAIN"),
        ("DOWN*", 0, "c1 is DOWN*"),
        ("IDLE+MAINTENANCE+RESERVED", 0, "c1 is IDLE+MAINTENANCE+RESERVED"),
    ],
)
def test_a_node_that_is_not_free_is_left_alone(played: Played, state: str, cpus: int, why: str) -> None:
    played.verdict(CRITICAL, 2)
    played.node(state, cpus)
    assert played.run().returncode == 0
    assert played.told("meshrun") == played.told("nvidia-smi") == played.updates == []
    assert played.logged == [("info", f"{why}: not measured")]


@pytest.mark.parametrize("way", AS)
def test_gpus_that_somebody_uses_are_left_alone(played: Played, way: str) -> None:
    played.write("pids", "4711\n4711\n 815\n")
    assert played.run(**AS[way]).returncode == 0
    assert played.told("meshrun") == []
    assert played.logged == [("info", "GPUs of c1 are in use by process 815 4711: not measured")]


@pytest.mark.parametrize(
    ("gpus", "why"), [("0,1,2,3", "job 17 has 4 of the 8 GPUs of c1"), ("", "job 17 has no GPU of c1")]
)
def test_a_job_with_a_part_of_the_node_has_neighbours(played: Played, gpus: str, why: str) -> None:
    assert played.run(**{**JOB, "SLURM_JOB_GPUS": gpus}).returncode == 0
    assert played.told("meshrun") == []
    assert played.logged == [("info", f"{why}: not measured")]


def test_a_healthy_job_asks_slurm_nothing(played: Played) -> None:
    played.run(**JOB)
    assert played.told("scontrol") == []


def test_nodes_without_gpus_are_left_alone(played: Played) -> None:
    played.node(gres="(null)")
    assert played.run(MESHRUN_DRAIN_ON_UNKNOWN="1").returncode == 0
    assert played.logged == [("info", "Slurm counts on no GPU of c1: not measured")]


def test_divided_gpus_are_left_alone(played: Played) -> None:
    played.write("gpus", "GPU 0: NVIDIA H200 (UUID: GPU-0)\n  MIG 1g.18gb Device 0: (UUID: MIG-0)\n")
    assert played.run().returncode == 0
    assert played.updates == []
    assert played.logged == [("info", "the GPUs of c1 are divided (MIG): not measured")]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:8", 8), ("gpu:h200:8(S:0-1),shard:64", 8), ("gpu:a100:4(S:0,2),gpu:h100:4(S:1)", 8)],
)
def test_a_gpu_that_is_gone_is_critical(played: Played, gres: str, gpus: int) -> None:
    played.node(gres=gres)
    played.write("gpus", "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})\n" for i in range(7)))
    played.run()
    assert played.told("meshrun") == []
    assert played.updates == [[*DRAINED[:3], f"reason=meshrun: host c1: the driver lists 7 of {gpus} GPUs"]]


def test_a_gpu_that_is_gone_ends_the_prolog(played: Played) -> None:
    played.write("gpus", "GPU 0: NVIDIA H200 (UUID: GPU-0)\n")
    assert played.run(**JOB).returncode == 1
    assert played.updates[0][-1] == "reason=meshrun: host c1: the driver lists 1 of 8 GPUs"


def test_a_driver_that_does_not_answer_is_unknown(played: Played) -> None:
    played.write("gpus", "NVIDIA-SMI has failed\n")
    assert played.run().returncode == 0
    assert played.logged == [("err", "c1: unknown: host c1: nvidia-smi lists no GPU: NVIDIA-SMI has failed")]


def test_a_slurm_that_does_not_answer(played: Played) -> None:
    (played.folder / "node").unlink()
    played.verdict(CRITICAL, 2)
    assert played.run().returncode == 0
    assert played.told("meshrun") == []
    ((priority, sentence),) = played.logged
    assert priority == "info"
    assert sentence.startswith("Slurm does not say what c1 does")


def test_a_drain_that_slurm_refuses_is_said(played: Played) -> None:
    played.verdict(CRITICAL, 2)
    played.write("refusal", "slurm_update error: Invalid user id\n")
    assert played.run().returncode == 1
    assert played.logged == [
        ("err", f"cannot drain c1 (slurm_update error: Invalid user id), and it should be: {NIC}")
    ]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN*", "DOWN+DRAIN", "FAIL"])
@pytest.mark.parametrize("reason", ["disk, ask Ada [ticket 7]", "meshrun: host c1, GPU 0: its PCIe"])
def test_a_reason_that_is_there_stays(played: Played, state: str, reason: str) -> None:
    """Also of a drain in the middle of the measurement."""
    played.node(state, reason=reason)
    os.rename(played.folder / "node", played.folder / "drained")
    played.node()
    played.verdict(CRITICAL, 2, act='cp "$PLAYED/drained" "$PLAYED/node"\n')
    assert played.run().returncode == 0
    assert played.updates == []
    said = f"c1 is {state} already ({reason}), otherwise it would be for: {NIC}"
    assert played.logged == [("err", said)]


def test_what_was_measured_beside_a_new_job_does_not_count(played: Played) -> None:
    played.node("ALLOCATED", cpus=8)
    os.rename(played.folder / "node", played.folder / "busy")
    played.node()
    played.verdict(CRITICAL, 2, act='cp "$PLAYED/busy" "$PLAYED/node"\n')
    assert played.run().returncode == 0
    assert played.updates == []
    assert played.logged == [("info", "a job has started on c1 meanwhile: not measured")]


@pytest.mark.parametrize("way", AS)
@pytest.mark.parametrize("told", ["option", "setting"])
def test_a_dry_run_says_what_it_would_do(played: Played, way: str, told: str) -> None:
    played.verdict(CRITICAL, 2)
    if told == "setting":
        played.write("settings", "MESHRUN_DRY_RUN=1\n")
    if AS[way]:
        played.node("ALLOCATED", cpus=8)
    done = played.run(*(["--dry-run"] if told == "option" else []), **AS[way])
    assert (done.returncode, played.updates) == (0, [])
    assert (
        done.stdout
        == f"meshrun: would run: scontrol update nodename=c1 state=drain reason='meshrun: {NIC}'\n"
    )


MESHRUN = Path(sys.executable).with_name("meshrun")


@pytest.mark.skipif(not MESHRUN.exists(), reason="meshrun is not installed beside this Python")
@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (",fault=gpu:h0:3:0.6", "host h0, GPU 3: "),
        (",fault=nvlink:h0:5:0.6", "host h0, GPU 5: its NVLink at "),
        ("", ""),
    ],
)
def test_a_rehearsal_with_the_real_meshrun(played: Played, fault: str, part: str) -> None:
    """Needs no GPU, and dry no Slurm."""
    for name in ("nvidia-smi", "scontrol"):
        (played.folder / "bin" / name).unlink()
    simulated = {"MESHRUN": str(MESHRUN), "MESHRUN_SIMULATE": f"hosts=1,gpus=8{fault}"}
    done = played.run("--dry-run", **simulated)
    assert (done.returncode, done.stderr) == (0, "")
    if part:
        would = "meshrun: would run: scontrol update nodename=c1 state=drain reason='meshrun: rehearsal: "
        assert done.stdout.startswith(would + part)
    else:
        assert done.stdout.startswith("meshrun: c1 is ok: rehearsal: 8 ranks on 1 host, simulated")


@pytest.mark.skipif(not MESHRUN.exists(), reason="meshrun is not installed beside this Python")
def test_the_rehearsals_of_the_page(tmp_path: Path) -> None:
    """As they stand there, from the repository's folder, but for where files are written."""
    page = (SLURM.parent / "docs" / "validate-schedulers.md").read_text()
    section = page.split("## Rehearse first")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if re.match("meshrun |MESHRUN_SIMULATE=", line)]
    path = f"{MESHRUN.parent}:{os.environ['PATH']}"
    ended = []
    for line in lines:
        here = line.replace(" report.", f" {tmp_path}/report.")
        done = subprocess.run(
            here, shell=True, cwd=SLURM.parent, env={**os.environ, "PATH": path}, check=False, timeout=60,
            capture_output=True, text=True,
        )  # fmt: skip
        ended.append((done.returncode, done.stdout.partition(" at ")[0]))
    assert [status for status, _ in ended] == [2, 2, 0]
    assert ended[0][1] == "CRITICAL: host h0, GPU 3:"
    assert ended[1][1] == "CRITICAL: host h3, GPU 1: its NIC"
    assert ended[2][1].endswith("reason='meshrun: rehearsal: host h0, GPU 5: its NVLink")
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".html"}


def test_only_one_at_a_time_on_a_node(played: Played) -> None:
    played.verdict(OK, 0, act='touch "$PLAYED/begun"\nuntil [ -e "$PLAYED/go" ]; do sleep 0.05; done\n')
    with subprocess.Popen(["sh", SCRIPT], env=played.environment, stdout=subprocess.PIPE, text=True) as first:
        while not (played.folder / "begun").exists():
            assert first.poll() is None
            time.sleep(0.02)
        second = played.run()
        assert second.stdout == "meshrun: another check of c1 is running: not measured\n"
        with subprocess.Popen(
            ["sh", SCRIPT], env={**played.environment, **JOB}, stdout=subprocess.PIPE, text=True
        ) as job:
            time.sleep(0.3)
            assert job.poll() is None, "a job's check waits"
            assert len(played.told("meshrun")) == 1
            played.write("go", "")
            assert job.communicate(timeout=60)[0] == IS_OK
        assert first.communicate(timeout=60)[0] == IS_OK
    assert len(played.told("meshrun")) == 2


@pytest.mark.parametrize("where", ["prolog_slurmctld", "epilog_slurmctld", "prolog_task"])
def test_where_it_does_not_belong_it_does_nothing(played: Played, where: str) -> None:
    done = played.run(**{**JOB, "SLURM_SCRIPT_CONTEXT": where})
    assert (done.returncode, played.told("meshrun")) == (0, [])
    assert f"{where} does not run on every node as root: not measured" in done.stdout


def test_a_lock_that_cannot_be_had_fails_no_prolog(played: Played) -> None:
    lock = "/nowhere/lock"
    done = played.run(**JOB, MESHRUN_LOCK=lock)
    assert (done.returncode, done.stdout) == (0, f"meshrun: cannot write {lock}: not measured\n")


def test_odd_characters_and_length_of_a_reason(played: Played) -> None:
    odd = "host c1; `reboot` $(reboot) \"a\" 'b' | c\\ é\ttab, GPU 3: " + "x" * 300
    played.verdict(f"critical: {odd}", 2)
    played.run()
    ((_, _, _, reason),) = played.updates
    text = reason.removeprefix("reason=meshrun: ")
    assert text.startswith("host c1; ?reboot? ?(reboot) ?a? ?b? ? c? ???tab, GPU 3: xxx")
    assert len(reason.removeprefix("reason=")) == 239
    assert played.logged == [("err", f"c1 is drained: {odd}")]


def test_settings_are_read_where_there_is_no_environment(played: Played) -> None:
    """As slurmd starts it: SLURMD_NODENAME and nothing else, not even a PATH."""
    played.verdict(CRITICAL, 2)
    settings = {name: value for name, value in played.environment.items() if name != "MESHRUN_CONF"}
    text = "".join(f"export {name}='{value}'\n" for name, value in settings.items())
    played.write("settings", text + "MESHRUN_OPTIONS='--rungs gpu'\n")
    done = subprocess.run(
        ["/bin/sh", SCRIPT],
        env={"SLURMD_NODENAME": "c1", "MESHRUN_CONF": str(played.folder / "settings")},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert played.told("meshrun") == [["-n", "8", "validate", "--rungs", "gpu"]]
    assert played.updates == [DRAINED]


@pytest.mark.parametrize("text", ["MESHRUN='\n", "if\n"])
def test_a_mistake_in_the_settings_fails_no_prolog(played: Played, text: str) -> None:
    played.write("settings", text)
    done = played.run(**JOB)
    assert (done.returncode, played.told("meshrun")) == (0, [])
    assert "settings" in done.stderr


def test_settings_may_name_what_is_not_set(played: Played) -> None:
    played.write("settings", "MESHRUN_OPTIONS=--quick$NOWHERE\n")
    assert played.run().stdout == IS_OK


def test_nothing_is_left_in_the_file_system(played: Played) -> None:
    played.verdict(CRITICAL, 2, act="touch meshrun.lost\n")
    played.run()
    assert list((played.folder / "tmp").iterdir()) == []
    assert not (played.folder / "meshrun.lost").exists()


RESUMED = ["update", "nodename=c1", "state=resume"]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN"])
def test_undrain_resumes_what_it_drained(played: Played, state: str) -> None:
    played.node(state, reason=f"meshrun: {NIC}, FAIL, DOWN [x]")
    done = played.run("--undrain")
    assert (done.returncode, played.updates) == (0, [RESUMED])
    assert done.stdout == f"meshrun: c1 is resumed; it was drained for: {NIC}, FAIL, DOWN [x]\n"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE+DRAIN", "disk, ask Ada"),
        ("IDLE+DRAIN", "not meshrun: something"),
        ("IDLE", ""),
        ("IDLE", f"meshrun: {NIC}"),
        ("DOWN+DRAIN", f"meshrun: {NIC}"),
        ("DOWN*", f"meshrun: {NIC}"),
    ],
)
def test_undrain_resumes_nothing_else(played: Played, state: str, reason: str) -> None:
    played.node(state, reason=reason)
    done = played.run("--undrain")
    assert (done.returncode, played.updates) == (1, [])
    said = f"c1 was not drained by meshrun: it is {state} ({reason or 'no reason'}), and stays so"
    assert done.stdout == f"meshrun: {said}\n"


def test_undrain_of_another_node_and_dry(played: Played) -> None:
    played.node("IDLE+DRAIN", reason="meshrun: x")
    done = played.run("--undrain", "c9", "--dry-run")
    assert done.stdout == "meshrun: would run: scontrol update nodename=c9 state=resume\n"
    assert played.told("scontrol") == [["show", "node", "c9"]]


def test_a_node_returns_after_checks_that_pass(played: Played) -> None:
    """Drained by a check after a job, measured twice while drained, and resumed after the second pass."""
    played.verdict(CRITICAL, 2)
    assert played.run(**AS["epilog"], MESHRUN_RESUME="2").returncode == 1
    assert played.updates == [DRAINED]
    played.node("IDLE+DRAIN", reason=f"meshrun: {NIC}")
    played.verdict(OK, 0)
    first = played.run(MESHRUN_RESUME="2")
    assert first.stdout == f"{IS_OK}meshrun: c1 stays drained: 1 of 2 checks passed since\n"
    assert played.updates == [DRAINED]
    second = played.run(MESHRUN_RESUME="2")
    assert second.stdout == f"{IS_OK}meshrun: c1 is resumed after 2 checks that passed: {NIC}\n"
    assert played.updates == [DRAINED, RESUMED]


@pytest.mark.parametrize(("line", "status"), [(CRITICAL, 2), ("WARNING: x", 1), ("UNKNOWN: x", 3), ("", 0)])
def test_checks_that_pass_must_follow_each_other(played: Played, line: str, status: int) -> None:
    played.verdict(CRITICAL, 2)
    played.run()
    played.node("IDLE+DRAIN", reason=f"meshrun: {NIC}")
    for said, ended in ((OK, 0), (line, status), (OK, 0)):
        played.verdict(said, ended)
        played.run(MESHRUN_RESUME="2")
    assert played.updates == [DRAINED]


@pytest.mark.parametrize(
    ("state", "reason", "setting"),
    [
        ("IDLE+DRAIN", f"meshrun: {NIC}", ""),  # not asked for
        ("IDLE+DRAIN", "disk, ask Ada", "1"),
        ("IDLE+DRAIN", "meshrun: host c1, GPU 3: its NIC at 50 %", "1"),  # measured between hosts
        ("DOWN+DRAIN", f"meshrun: {NIC}", "1"),
        ("IDLE+DRAIN+REBOOT_REQUESTED", f"meshrun: {NIC}", "1"),
    ],
)
def test_nobody_else_s_drain_is_lifted(played: Played, state: str, reason: str, setting: str) -> None:
    """Nor is one for a part that this check does not measure."""
    played.verdict(CRITICAL, 2)
    played.run()
    played.verdict(OK, 0)
    played.node(state, reason=reason)
    done = played.run(MESHRUN_RESUME=setting)
    assert done.stdout == f"meshrun: c1 is {state}: not measured\n"
    assert played.updates == [DRAINED]


def test_a_node_with_jobs_is_not_measured_though_it_may_return(played: Played) -> None:
    played.verdict(CRITICAL, 2)
    played.run()
    played.verdict(OK, 0)
    played.node("MIXED+DRAIN", cpus=4, reason=f"meshrun: {NIC}")
    assert played.run(MESHRUN_RESUME="1").stdout == "meshrun: c1 has jobs: not measured\n"


def test_a_dry_run_resumes_nothing(played: Played) -> None:
    played.verdict(CRITICAL, 2)
    played.run()
    played.node("IDLE+DRAIN", reason=f"meshrun: {NIC}")
    played.verdict(OK, 0)
    done = played.run("--dry-run", MESHRUN_RESUME="1")
    assert done.stdout == f"{IS_OK}meshrun: would run: scontrol update nodename=c1 state=resume\n"
    assert played.updates == [DRAINED]


@pytest.mark.parametrize("setting", ["yes", "0", "-1"])
def test_a_setting_that_is_no_number_of_checks(played: Played, setting: str) -> None:
    played.verdict(CRITICAL, 2)
    played.run()
    played.node("IDLE+DRAIN", reason=f"meshrun: {NIC}")
    done = played.run(MESHRUN_RESUME=setting)
    assert done.stdout.startswith(
        f"meshrun: MESHRUN_RESUME={setting} is no number of checks, and is ignored\n"
    )
    assert played.updates == [DRAINED]


def test_wrong_words_do_nothing(played: Played) -> None:
    done = played.run("--drain")
    assert (done.returncode, done.stdout, played.told("scontrol")) == (64, "", [])


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_every_shell_reads_it(played: Played, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    words = [shell, "sh"] if shell == "busybox" else [shell, *(["--posix"] if shell == "bash" else [])]
    played.verdict(CRITICAL, 2)
    subprocess.run([*words, str(SCRIPT)], env=played.environment, check=True, timeout=60)
    assert played.updates == [DRAINED]


# validate.sbatch


def submitted(folder: Path, srun: str, *words: str) -> tuple[int, list[str]]:
    """The exit status of the batch script, whose srun does that, and the words that srun got."""
    (folder / "srun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >words\n{srun}')
    (folder / "srun").chmod(stat.S_IRWXU)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_CPUS_ON_NODE": "96",
        "SLURM_NTASKS_PER_NODE": "8",
        "SLURM_NTASKS": "16",
    }
    done = subprocess.run(
        ["bash", SLURM / "validate.sbatch", *words], env=environment, cwd=folder, check=False
    )
    return done.returncode, (folder / "words").read_text().splitlines()


def test_reports_are_kept_by_job(tmp_path: Path) -> None:
    _, words = submitted(tmp_path, "exit 0\n")
    reports = ["-J", "validate-17.json", "--html", "validate-17.html", "--junit", "validate-17.xml"]
    assert words[words.index("meshrun") :] == ["meshrun", "-n", "16", "validate", *reports]
    assert "--cpus-per-task=12" in words
    _, words = submitted(tmp_path, "exit 0\n", "validate", "--quick", "--rungs", "gpu,host pairs")
    assert words[words.index("meshrun") + 3 :] == [
        "validate", "--quick", "--rungs", "gpu,host pairs", *reports,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "report", "status"),
    [
        *[(status, "whatever", status) for status in range(4)],
        (143, '{"schema": 1, "status": "critical"}', 2),  # a rank was killed
        (143, '{"schema": 1, "status": "ok"}', 3),
        (143, None, 3),
        (0, None, 3),
        (0, "", 3),
        (2, None, 3),  # click's status of a wrong option
    ],
)
def test_the_jobs_exit_status_is_the_verdict(
    tmp_path: Path, left: int, report: str | None, status: int
) -> None:
    write = "" if report is None else f"printf %s '{report}' >validate-17.json\n"
    assert submitted(tmp_path, f"{write}exit {left}\n")[0] == status

"""What NCCL's RAS says of a run, asked of a server that speaks its protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stalled_ranks import COMPUTING, WAITING, setting

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.world import world
from meshrun.runner.world.run_status import RunDirectory
from meshrun.runner.world.stuck import monitor_process, nccl_ras
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.stuck.monitor_process import Lead

REPORT = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  MISMATCH

Errors
======

{errors}Warnings
========

{warnings}"""
MISMATCH = """#0-0 (e1b1a1f4c0) MISMATCH
  Communicator ranks have different collective operation counts
  1 rank has launched up to operation 46
  1 rank has launched up to operation 47

"""
QUIET = REPORT.format(errors="", warnings="")
LOUD = REPORT.format(errors="", warnings=MISMATCH)
Talk = Callable[[socket.socket], None]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the server may take seconds to answer."""
    monkeypatch.setattr(nccl_ras, "TIMEOUT", 60.0)


def spoken(text: str, *, pieces: int = 7, question: bytes = b"STATUS\n") -> Talk:
    """Answer as NCCL does, some bytes at a time."""

    def talk(client: socket.socket) -> None:
        lines = client.makefile("rb")
        assert lines.readline() == b"TIMEOUT 60\n"
        client.sendall(b"OK\n")
        assert lines.readline() == question
        data = text.encode()
        for start in range(0, len(data), pieces):
            client.sendall(data[start : start + pieces])

    return talk


@contextmanager
def listening(*talks: Talk) -> Iterator[str]:
    """Serve as many clients, one after another; returns the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for talk in talks:
                with server.accept()[0] as client:
                    talk(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{server.getsockname()[1]}"
        thread.join()


def test_warnings_are_quoted() -> None:
    with listening(spoken(LOUD)) as address:
        assert nccl_ras.findings(address) == [
            f"NCCL's RAS at {address} reports:",
            "  #0-0 (e1b1a1f4c0) MISMATCH",
            "    Communicator ranks have different collective operation counts",
            "    1 rank has launched up to operation 46",
            "    1 rank has launched up to operation 47",
        ]


def test_errors_and_warnings_are_quoted_up_to_a_limit() -> None:
    text = REPORT.format(errors="INCOMPLETE\n  Missing rank 1\n\n", warnings="a line\x1b[2J\n" * 30)
    with listening(spoken(text, pieces=4096)) as address:
        first, *lines = nccl_ras.findings(address)
    assert first.endswith("reports:")
    assert lines[:3] == ["  INCOMPLETE", "    Missing rank 1", "  a line\\x1b[2J"]
    assert (len(lines), lines[-1]) == (nccl_ras.MOST_LINES + 1, "  ... 16 more lines")


def test_a_run_without_errors_is_told_so() -> None:
    with listening(spoken(QUIET)) as address:
        assert nccl_ras.findings(address) == [f"NCCL's RAS at {address} reports no errors and no warnings"]


# NCCL 2.31.2 on two GPUs, of which one rank had other variables.
DIAGNOSED = """n1:2854 NCCL DIAG === RAS Diagnostics ===
n1:2854 NCCL DIAG [OK]   GPU inventory: 2x NVIDIA H200 per node consistent across 2 ranks in comm 0x25
n1:2854 NCCL DIAG [OK]   NVLink: found 18 link(s) per device, all active across 2 ranks in comm 0x25
n1:2854 NCCL DIAG [INFO] NCCL environment: NCCL_NTHREADS=256 on rank(s) {0}
n1:2854 NCCL DIAG [INFO] NCCL environment: NCCL_NTHREADS=(unset) on rank(s) {1}
n1:2854 NCCL DIAG RAS diagnostics completed in 11.3 ms across 2 RAS peers
"""
FOUND = (
    "NCCL environment: NCCL_NTHREADS=256 on rank(s) {0}",
    "NCCL environment: NCCL_NTHREADS=(unset) on rank(s) {1}",
)


def test_diagnostics_are_divided_into_what_is_right_and_what_is_not() -> None:
    with listening(spoken(DIAGNOSED, question=b"DIAGNOSTICS\n")) as address:
        assert nccl_ras.diagnostics(address) == nccl_ras.NcclDiagnostics(
            (
                "GPU inventory: 2x NVIDIA H200 per node consistent across 2 ranks in comm 0x25",
                "NVLink: found 18 link(s) per device, all active across 2 ranks in comm 0x25",
            ),
            FOUND,
        )


@pytest.mark.parametrize(
    "text", ["", "ERROR: diagnostics failed to start (3)\n", "BUSY: diagnostics already\n"]
)
def test_no_answer_to_diagnostics_is_told(text: str) -> None:
    with listening(spoken(text, question=b"DIAGNOSTICS\n")) as address:
        found = nccl_ras.diagnostics(address)
    assert found.passed == ()
    (sentence,) = found.found
    assert sentence.startswith(f"NCCL's RAS at {address} does not answer: it answers ")
    assert text[:6] in sentence


def test_an_nccl_that_has_diagnostics_is_asked_for_them_too() -> None:
    status = spoken(LOUD.replace("2.28.9", "2.31.2"))
    with listening(status, spoken(DIAGNOSED, question=b"DIAGNOSTICS\n")) as address:
        lines = nccl_ras.findings(address)
    assert lines[0] == f"NCCL's RAS at {address} reports:"
    assert lines[-3:] == ["NCCL's diagnostics find:", *(f"  {sentence}" for sentence in FOUND)]
    right = "".join(line for line in DIAGNOSED.splitlines(keepends=True) if "[INFO]" not in line)
    with listening(status, spoken(right, question=b"DIAGNOSTICS\n")) as address:
        assert not any("diagnostics" in line for line in nccl_ras.findings(address))


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert nccl_ras.findings(f"localhost:{port}") == []


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        (
            lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
            "it answers 'HTTP/1.1 400 Bad Request'",
        ),
        (lambda client: None, "it has closed the connection"),
        (lambda client: client.sendall(b"O"), "it has closed the connection"),
    ],
)
def test_another_server_is_told(talk: Talk, why: str) -> None:
    with listening(talk) as address:
        (line,) = nccl_ras.findings(address)
    assert line.startswith(f"NCCL's RAS at {address} does not answer: ")
    assert why in line or "Connection reset" in line or "Broken pipe" in line


def test_a_stopped_process_does_not_hold_up_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes the connection and the question."""
    monkeypatch.setattr(nccl_ras, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        assert nccl_ras.findings(address) == [f"NCCL's RAS at {address} does not answer: timed out"]


def test_the_address_is_the_runs_own_unless_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (nccl_ras.ADDRESS, nccl_ras.ENABLED):
        monkeypatch.delenv(name, raising=False)
    first, second = nccl_ras.place("0123456789ab"), nccl_ras.place("0123456789ac")
    assert first == nccl_ras.address_of("0123456789ab") != second
    assert all(20000 <= int(str(one).removeprefix("localhost:")) < 28000 for one in (first, second))
    monkeypatch.setenv(nccl_ras.ADDRESS, "10.0.0.1:9")
    assert nccl_ras.place("0123456789ab") == "10.0.0.1:9"
    monkeypatch.setenv(nccl_ras.ENABLED, "0")
    assert nccl_ras.place("0123456789ab") is None


def test_nccl_gets_the_address_for_when_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    backend = CpuBackend()
    backend.device = replace(backend.device, kind="cuda")
    monkeypatch.setattr(world, "bind_device", lambda *_: backend)
    monkeypatch.setattr(world, "visible_gpus", lambda _: 1)

    def arrays(control: Any, *_: Any, **options: Any) -> Any:
        seen.append(options["variables"])
        return control

    monkeypatch.setattr(world, "open_arrays", arrays)
    (opened,) = run_ranks(1, lambda comm: world.open_world(control=comm))
    assert seen == [{nccl_ras.ADDRESS: nccl_ras.address_of(opened.run_id)}]


@pytest.mark.parametrize("chosen", [True, False])
def test_a_stall_is_reported_with_what_nccl_says(
    chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that ends, and of one that goes on; on CPUs nothing is asked."""
    monkeypatch.setattr(HostMonitor, "snapshots", lambda _: [WAITING, COMPUTING])
    monkeypatch.setattr(HostMonitor, "progress", lambda _: {0: 9, 1: 8})
    with listening(spoken(LOUD)) as address:
        about = setting(RunDirectory(tmp_path), seconds=0.0, chosen=chosen, ras=address)
        lead = Lead(about, HostMonitor("abc"), None)
        lead.look()
        assert lead.look() == chosen
    lines = capsys.readouterr().err.splitlines()
    assert f"meshrun:   NCCL's RAS at {address} reports:" in lines
    assert "meshrun:       1 rank has launched up to operation 46" in lines
    assert lines.index(f"meshrun:   NCCL's RAS at {address} reports:") == 2
    asked: list[str] = []
    monkeypatch.setattr(monitor_process.nccl_ras, "findings", asked.append)
    lead = Lead(setting(RunDirectory(tmp_path), seconds=0.0), HostMonitor("abc"), None)
    lead.look()
    lead.look()
    assert asked == []

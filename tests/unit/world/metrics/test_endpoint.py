"""The process that serves metrics: ports in use, runs that end while they are scraped, clients that hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.cli.main import main
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.world import helper_process
from meshrun.runner.world.metrics.endpoint import PROCESS, _end

RUN = f"metrics{os.getpid()}"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    about = {"run": RUN, "rank": 0, "size": 1, "host": "n1", "device": "CPU", "command": "run"}
    made = Recorder(ring.file_of(RUN, 0), about)
    yield made
    made.close()


def start(port: int = 0, address: str = "127.0.0.1") -> tuple[subprocess.Popen[str], dict[str, Any]]:
    setting = {
        "run_id": RUN, "size": 1, "version": "1", "labels": {"run": RUN}, "ranks": [0], "gpus": {},
        "address": address, "port": port, "path": [folder for folder in sys.path if folder],
    }  # fmt: skip
    process = helper_process.start(PROCESS, "metrics", setting)
    assert not isinstance(process, str)
    return process, helper_process.first_message(process, "metrics")


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def test_several_runs_are_served_each_at_its_port_and_a_port_in_use_is_told(recorder: Recorder) -> None:
    recorder.plan_steps(7)
    first, place = start()
    second, other = start()
    third, refused = start(place["place"])
    try:
        for port in (place["place"], other["place"]):
            assert f'meshrun_steps_planned{{rank="0",run="{RUN}"}} 7.0' in scrape(port)
        assert place != other
        assert refused == {"error": "Address already in use"}
    finally:
        for process in (first, second, third):
            _end(process)
    assert [process.returncode for process in (first, second)] == [0, 0]


def test_all_addresses_include_ipv4(recorder: Recorder) -> None:
    recorder.plan_steps(7)
    process, place = start(address="")
    try:
        assert "meshrun_steps_planned" in scrape(place["place"])
    finally:
        _end(process)


def test_a_run_that_ends_while_it_is_scraped_sends_the_whole_answer(recorder: Recorder) -> None:
    recorder.plan_steps(7)
    process, place = start()
    answers: list[bytes] = []
    with socket.create_connection(("127.0.0.1", place["place"]), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        time.sleep(0.02)  # accepted, perhaps not answered
        _end(process)
        while chunk := client.recv(1 << 16):
            answers.append(chunk)
    head, _, body = b"".join(answers).partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert body.endswith(b"\n")
    assert process.poll() == 0


def test_a_client_that_reads_nothing_does_not_hold_a_run(recorder: Recorder) -> None:
    process, place = start()
    with socket.create_connection(("127.0.0.1", place["place"])):
        time.sleep(0.1)
        _end(process)
    assert process.poll() == 0


def test_the_process_ends_with_a_rank_that_is_killed(recorder: Recorder) -> None:
    script = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_endpoint import start\n"
        "process, place = start()\nprint(process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        rank.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "grayscale", "a.npy", "b.npy"],
        ["bench", "all_reduce", "-b", "8", "-e", "8"],
        ["validate", "--quick", "--device", "cpu"],
    ],
)
def test_a_command_whose_port_is_in_use_fails_before_it_begins(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--metrics", f"127.0.0.1:{port}", *words]) != 0
    said = capsys.readouterr().err
    host = os.uname().nodename
    assert (
        f"meshrun: host {host} cannot serve metrics on 127.0.0.1 port {port}: Address already in use. Try: "
        "--metrics PORT with another port, or --metrics 0 for any free one\n"
    ) in said
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize("value", ["x", "70000", "-1", "a:", ":::1", "1.2.3.4:x", "::1"])
def test_a_wrong_port_is_told(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--metrics={value}", "jobs"]) == 2
    assert "expected PORT, 0 to 65535, or ADDRESS:PORT such as 127.0.0.1:9400" in capsys.readouterr().err

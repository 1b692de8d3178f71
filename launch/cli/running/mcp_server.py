"""`meshrun mcp`: a read-only server of the Model Context Protocol, for assistants that help an operator.

Each tool runs a command of this installation that changes nothing, or reads one report. Their docstrings are
what the assistant reads of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mcp.server import MCPServer

TIMEOUT = 120.0  # seconds for a command
JOB = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # an installed job; a file would be executed
SHOWN = ("status", "line", "started", "seconds", "command", "simulated", "alarms", "not_judged", "rungs")
ABOUT = (
    "Plans, live runs and verdicts of meshrun, a multi-GPU job runner and interconnect validator. "
    "All tools are read-only: none starts a run, writes a file or touches a GPU."
)


@click.command("mcp")
def mcp_server() -> int:
    """Serve plans, live runs and verdicts to an assistant, read-only (MCP on standard input and output).

    \b
    claude mcp add meshrun -- meshrun mcp      such a line adds it to a client
    """
    server().run()
    return 0


def server() -> MCPServer[Any]:
    """The server with its tools. Raises UserError if the package mcp is not installed."""
    from meshrun.runner.errors import UserError

    try:
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as reason:
        raise UserError(
            "`meshrun mcp` needs the package mcp 2, which is not installed", hint="pip install 'meshrun[mcp]'"
        ) from reason

    made: MCPServer[Any] = MCPServer("meshrun", instructions=ABOUT)
    for tool in (plan, status, verdict):
        made.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return made


def plan(
    job: str, shape: str, dtype: str = "float32", ranks: int = 1, gpu: str | None = None
) -> dict[str, Any]:
    """Predict the time and memory of a run of an installed job, without a GPU.

    job: a name that `meshrun jobs` lists, such as laplacian. shape: of the input, such as 8192x8192. gpu: a
    model such as h200; without it, this machine.
    """
    if not JOB.fullmatch(job):
        raise ValueError(f"{job!r} is not the name of an installed job; `meshrun jobs` lists them")
    options = {"--shape": shape, "--input-dtype": dtype, "--ranks": str(ranks)} | (
        {"--gpu": gpu} if gpu else {}
    )
    found: dict[str, Any] = _json(
        ["plan", job, *(f"{name}={value}" for name, value in options.items()), "--json", "-"]
    )
    return found


def status() -> list[dict[str, Any]]:
    """Show what each rank of this user's runs on this host is doing, and which rank waits for which."""
    try:
        runs: list[dict[str, Any]] = _json(["status", "--json"])
    except ValueError as reason:
        if "no run of this user" in str(reason):
            return []
        raise
    return runs


def verdict(report: str) -> dict[str, Any]:
    """Read a JSON report of `meshrun validate -J FILE`: its verdict, findings, and what was not judged.

    report: path of the file.
    """
    try:
        document = json.loads(Path(report).read_text())
    except (OSError, ValueError, RecursionError) as reason:
        raise ValueError(f"{report} cannot be read as JSON: {type(reason).__name__}") from None
    if not isinstance(document, dict) or not {"schema", "status", "line", "findings"} <= document.keys():
        raise ValueError(f"{report} is no report of meshrun validate")
    findings = [
        {key: each.get(key) for key in ("sentence", "kind", "hosts", "gpus", "factor", "rung")}
        for each in document["findings"]
    ]
    return {key: document[key] for key in SHOWN if key in document} | {"findings": findings}


def _json(words: Sequence[str]) -> Any:
    """The answer of a command of this installation. Raises ValueError with its message if it fails."""
    program = [sys.executable, "-m", "meshrun", *words]
    try:
        done = subprocess.run(
            program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"`meshrun {words[0]}` gave no answer within {TIMEOUT:g} s") from None
    if done.returncode:
        raise ValueError(" ".join(done.stderr.split()) or f"`meshrun {words[0]}` failed")
    return json.loads(done.stdout)

"""`meshrun mcp`, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.cli.running import mcp_server
from meshrun.runner.errors import UserError

mcp = pytest.importorskip("mcp")


def ask(tool: str, **arguments: Any) -> Any:
    """What a client gets: the tools' annotations and the answer."""

    async def asked() -> Any:
        async with mcp.Client(mcp_server.server()) as client:
            tools = (await client.list_tools()).tools
            return tools, await client.call_tool(tool, arguments)

    return asyncio.run(asked())


def report(folder: Path) -> Path:
    path = folder / "report.json"
    found = {"sentence": "host c7: slow", "kind": "host", "hosts": ["c7"], "secret": 1}
    document = {"schema": 2, "status": "critical", "line": "CRITICAL: host c7", "findings": [found]}
    path.write_text(json.dumps({**document, "members": [{"uuid": "GPU-1"}]}))
    return path


def test_every_tool_is_read_only(tmp_path: Path) -> None:
    tools, answer = ask("verdict", report=str(report(tmp_path)))
    assert {tool.name for tool in tools} == {"plan", "status", "verdict"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert not answer.is_error
    assert answer.structured_content["status"] == "critical"
    assert [each["sentence"] for each in answer.structured_content["findings"]] == ["host c7: slow"]
    assert "members" not in answer.structured_content


@pytest.mark.parametrize("text", [None, "", "[]", '{"status": "ok"}', "root:x:0:0"])
def test_what_is_no_report_is_an_error_that_shows_nothing_of_it(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read as JSON|is no report") as refused:
        mcp_server.verdict(str(path))
    assert "root:x" not in str(refused.value)


def test_a_plan_is_that_of_the_command() -> None:
    found = mcp_server.plan("laplacian", "1024x1024", ranks=2, gpu="h200")
    assert found["ranks"] == 2, found


@pytest.mark.parametrize("job", ["edges.py:edges", "../edges.py", "--calibrate", "", "a b"])
def test_only_installed_jobs_are_planned(job: str) -> None:
    """Planning a file would execute it."""
    with pytest.raises(ValueError, match="is not the name of an installed job"):
        mcp_server.plan(job, "8x8")


def test_a_mistake_is_told_as_the_command_tells_it() -> None:
    with pytest.raises(ValueError, match="shape"):
        mcp_server.plan("laplacian", "--json=/tmp/file")


def test_no_run_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert isinstance(mcp_server.status(), list)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(UserError, match=r"pip install 'meshrun\[mcp\]'"):
        mcp_server.server()

"""Drain the Slurm nodes that a validation between hosts has found critical.

    python -I -m meshrun.launch.slurm.drain REPORT [--most N] [--dry-run]

REPORT is what `meshrun validate -J REPORT` has written. A finding that names one node drains it; the two ends
of a link stay in service. If more than N nodes (4) would be drained, none is: the cause is then probably a
switch. The reasons begin with "meshrun:", so that `healthcheck.sh --undrain NODE` resumes a node.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from meshrun.launch.supervise.query import query

TIMEOUT = 20  # seconds for an answer of Slurm
MOST = 4  # nodes to drain for one report
LONGEST = 230  # characters of a reason, of which Slurm's database keeps 255
KEPT = ("DRAIN", "DOWN", "FAIL")  # states that are left as they are


def named_nodes(report: Path) -> tuple[dict[str, str], list[str]]:
    """Read a report.

    Parameters
    ----------
    report : Path
        The JSON document.

    Returns
    -------
    dict
        The first finding of each node to drain, by the node's name; empty unless the verdict is critical.
    list of str
        Findings that do not name one node.

    Raises
    ------
    ValueError
        If the file is no report.
    """
    try:
        document = json.loads(report.read_text())
        critical = document["status"] == "critical"
        findings = [
            (list(each["hosts"]), str(each["sentence"]), each.get("instead")) for each in document["findings"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"{report} is no report of meshrun validate: {reason!r}") from reason
    nodes: dict[str, str] = {}
    others = []
    for hosts, sentence, instead in findings if critical else ():
        if len(hosts) == 1 and not instead:
            nodes.setdefault(hosts[0].partition(".")[0], sentence)
        else:
            others.append(sentence)
    return nodes, others


def drain(node: str, sentence: str, dry: bool) -> str:
    """Drain a node that is in service; returns what was done. Raises OSError if Slurm refuses."""
    state = _scontrol("show", "node", node)
    found = re.search(r"\bState=(\S+)", state)
    if found is None:
        raise OSError(f"Slurm does not say what {node} does")
    if any(word in found[1] for word in KEPT):
        return f"{node} is {found[1]} already and stays so"
    plain = re.sub(r"[^A-Za-z0-9 .,:;%/()+_=@#-]", "?", f"meshrun: between hosts: {sentence}")[:LONGEST]
    if dry:
        return f"would run: scontrol update nodename={node} state=drain reason='{plain}'"
    _scontrol("update", f"nodename={node}", "state=drain", f"reason={plain}")
    return f"{node} is drained: {sentence}"


def _scontrol(*words: str) -> str:
    try:
        done = query(["scontrol", *words], "", TIMEOUT)
    except FileNotFoundError as reason:
        raise OSError(f"scontrol {words[0]}: {reason}") from reason
    if done.returncode:
        raise OSError(f"scontrol {words[0]}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout


def main(words: Sequence[str]) -> int:
    """Return 0 if every node that the report names is drained, 1 if one is not, 2 if nothing was tried."""
    parser = argparse.ArgumentParser(prog="python -m meshrun.launch.slurm.drain", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("report", type=Path, metavar="REPORT")
    parser.add_argument("--most", type=int, default=MOST, metavar="N")
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args(words)
    try:
        nodes, others = named_nodes(chosen.report)
    except ValueError as reason:
        print(f"meshrun: {reason}", file=sys.stderr)
        return 2
    for sentence in others:
        print(f"meshrun: no single node, so none is drained: {sentence}")
    if len(nodes) > chosen.most:
        print(
            f"meshrun: {len(nodes)} nodes are critical, more than --most {chosen.most}, so none is drained: "
            f"{', '.join(nodes)}",
            file=sys.stderr,
        )
        return 2
    failed = False
    for node, sentence in nodes.items():
        try:
            print(f"meshrun: {drain(node, sentence, chosen.dry_run)}", flush=True)
        except OSError as reason:
            print(f"meshrun: cannot drain {node}: {reason}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

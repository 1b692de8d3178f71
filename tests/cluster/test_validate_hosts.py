"""A validation of several hosts: the one behind a slower network is named by its NIC."""

from __future__ import annotations

import json

import pytest
from mpirun_site import EVERYONE, Site
from processes import launcher_problem

pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))

USUAL, SLOW = "1gbit", "200mbit"  # both slower than what the processors carry, so that the network decides


def test_the_host_behind_a_slower_network_is_named(site: Site) -> None:
    for host in EVERYONE.split(","):
        site.hosts.rate(host, SLOW if host == "n2" else USUAL)
    files = [
        word for kind in ("json", "html", "junit") for word in (f"--{kind}", str(site.notes / f"page.{kind}"))
    ]
    # A suspect by noise is looked at for another 40 s, more than once: what is sure by then counts.
    asked = ["validate", "--quick", "--budget", "80s", "--rungs", "host pairs", "--device", "cpu", *files]
    done = site.run("-j", "3x1", "--hosts", EVERYONE, "--", *asked)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("CRITICAL: host n2, CPU 0: its network at ") == 1
    report = json.loads((site.notes / "page.json").read_text())
    (finding,) = report["findings"]
    assert (finding["kind"], finding["hosts"], finding["rung"]) == ("nic", ["n2"], "host pairs")
    assert finding["factor"] < 0.5  # of the 0.2 that the network allows, and some noise
    assert "host n2" in (site.notes / "page.html").read_text()
    assert "n2" in (site.notes / "page.junit").read_text()
    site.nothing_is_left()

"""The process that serves the metrics of one host's ranks over HTTP, until the first of these ranks ends.

It reads the flight recorders when it is asked. `prometheus_client` has the server and both text formats,
Prometheus' own and OpenMetrics.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshrun.runner.world.helper_process import rank_has_ended, read_setting, write_message
from meshrun.runner.world.metrics.families import Family, FamilyTable, HostRanks, families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "meshrun_"
END_TIMEOUT = 1.0  # seconds for answers that are being sent when the run ends


class RunMetrics:
    """The collector of a run's metrics. Thread-safe.

    Parameters
    ----------
    ranks: of this host.
    labels: that every sample has.
    size: number of ranks of the run.
    version: of meshrun.
    """

    def __init__(self, ranks: HostRanks, labels: Mapping[str, str], size: int, version: str) -> None:
        self._ranks, self._labels, self._size, self._version = ranks, dict(labels), size, version
        self._most: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()

    def read(self) -> list[Family]:
        """Return all metrics, with names and labels as they are served."""
        with self._lock:
            readings = self._ranks.read()
            about = readings[0].recording.about if readings else {}
            run = FamilyTable()
            run.add("run_info", 1, command=str(about.get("command", "")), version=self._version)
            run.add("run_ranks", self._size)
            run.add("run_start_time_seconds", about.get("time"))
            return [self._served(family) for family in (*run.made.values(), *families(readings))]

    def _served(self, family: Family) -> Family:
        """Return a family with its full name and labels. Its counters never fall: Prometheus would take that
        for a restart, and the time of an open operation is known only to a part of a millisecond."""
        samples = []
        for own, value in family.samples:
            key = family.name, tuple(own.values())
            if family.kind == "counter":
                self._most[key] = max(self._most.get(key, 0.0), value)
            samples.append(({**self._labels, **own}, self._most.get(key, value)))
        return Family(PREFIX + family.name, family.kind, family.help, samples)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as `prometheus_client` has them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self.read():
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=list(family.samples[0][0]))
            for labels, value in family.samples:
                metric.add_metric(list(labels.values()), value)
            yield metric


def serve(metrics: RunMetrics, address: str, port: int) -> Any:
    """Serve metrics at an address; "": at all of this host's. Returns the server. Raises OSError."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(metrics)
    server: Any
    try:
        server, _ = start_http_server(port, address or ("::" if socket.has_ipv6 else "0.0.0.0"), registry)
    except OSError as failure:
        if address or failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        server, _ = start_http_server(port, "0.0.0.0", registry)  # IPv6 is switched off
    server.daemon_threads = False  # so that closing it waits for them
    return server


def main() -> None:
    setting = read_setting()
    sys.path += setting["path"]
    gpus = {int(rank): uuid for rank, uuid in setting["gpus"].items()}
    ranks = HostRanks(setting["run_id"], setting["ranks"], gpus)
    metrics = RunMetrics(ranks, setting["labels"], setting["size"], setting["version"])
    try:
        server = serve(metrics, setting["address"], setting["port"])
    except OSError as failure:  # also of a name without an address
        return write_message({"error": failure.strerror or str(failure)})
    write_message({"place": server.server_port})
    while not rank_has_ended():
        select.select([sys.stdin], [], [])
    closing = threading.Thread(target=server.server_close, daemon=True)
    closing.start()
    closing.join(END_TIMEOUT)
    os._exit(0)  # a client that reads nothing must not hold the process

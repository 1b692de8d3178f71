"""Error counters and states of a rank's GPU and of its host's network and processors."""

from __future__ import annotations

import time
from pathlib import Path

from meshrun.runner.system.counters.gpu import gpu_counters
from meshrun.runner.system.counters.kernel_log import has_nvswitches, nvswitch_errors
from meshrun.runner.system.counters.network import network_counters
from meshrun.runner.system.counters.processor import processor_counters

CLOCK = ("clock", "seconds")


def read_counters(
    uuid: str | None, local: int, root: Path = Path("/sys"), proc: Path = Path("/proc")
) -> dict[tuple[str, str], float | str]:
    """Read all counters and states, as {(part, counter): value}; unreadable ones are absent.

    uuid: of the rank's GPU, None on a CPU. local: the GPU's number on its host. Parts are "GPU 3",
    "GPU 3, NVLink 11", "mlx5_0 port 1", "eth0", "TCP", "processors", "NVSwitch". All ranks of a host have the
    same values for its network, processors and NVSwitches. ("clock", "seconds") is the host's monotonic clock
    at the reading.

    Counts start when the driver is loaded or the counters are reset. Units: seconds, MHz, watts, degrees
    Celsius.
    """
    switches = nvswitch_errors() if has_nvswitches(proc) else {}
    own = {} if uuid is None else gpu_counters(uuid, local)
    return (
        {CLOCK: time.monotonic()} | own | switches | network_counters(root, proc) | processor_counters(proc)
    )

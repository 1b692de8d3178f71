"""Error counters and states of what a rank uses: its GPU, its host's network and processors."""

from __future__ import annotations

import time
from pathlib import Path

from runner.system.gpu_counters import gpu_counters
from runner.system.network_counters import network_counters
from runner.system.processor_counters import processor_counters

CLOCK = ("clock", "seconds")


def read_counters(
    uuid: str | None, local: int, root: Path = Path("/sys"), proc: Path = Path("/proc")
) -> dict[tuple[str, str], float | str]:
    """Counters and states at this moment, by part and counter; what cannot be read is absent.

    uuid: of the rank's GPU, None on a CPU. local: the GPU's number on its host. Parts are "GPU 3",
    "GPU 3, NVLink 11", "mlx5_0 port 1", "eth0", "TCP", "processors"; those of the network and the processors
    are the same for all ranks of a host, as is ("clock", "seconds"), its monotonic clock at the reading.

    Counts are since the driver was loaded or the counters were reset; times are seconds, clocks MHz, power
    watts, temperatures degrees Celsius.
    """
    own = {} if uuid is None else gpu_counters(uuid, local)
    return {CLOCK: time.monotonic()} | own | network_counters(root, proc) | processor_counters(proc)

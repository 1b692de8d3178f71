"""Errors of NVSwitches, which the driver writes into the kernel's log as SXid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SXID = re.compile(rb"SXid \(PCI:[0-9a-fA-F:.]+\): *(\d+)")
RECORD = 8192  # bytes, the longest of the kernel's log
LOG = Path("/dev/kmsg")


def has_nvswitches(proc: Path) -> bool:
    """Whether the driver of NVSwitches is loaded."""
    return (proc / "driver" / "nvidia-nvswitch").exists()


def nvswitch_errors(log: Path = LOG) -> dict[tuple[str, str], float | str]:
    """Count the errors of NVSwitches since the host was started, as far back as the kernel's log reaches.

    Parameters
    ----------
    log : Path
        The kernel's log, of which each read returns one record.

    Returns
    -------
    dict
        {("NVSwitch", "SXid errors"): count}; empty where the log cannot be read, which needs CAP_SYSLOG if
        kernel.dmesg_restrict is 1.
    """
    try:
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        count = sum(len(SXID.findall(record)) for record in _records(file))
    except OSError:
        return {}
    finally:
        os.close(file)
    return {("NVSwitch", "SXid errors"): float(count)}


def _records(file: int) -> Iterator[bytes]:
    while True:
        try:
            record = os.read(file, RECORD)
        except BlockingIOError:  # the end of the log
            return
        except BrokenPipeError:  # records were overwritten before they were read
            continue
        if not record:
            return
        yield record

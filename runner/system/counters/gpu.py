"""Error counters and states of one GPU and its NVLinks, from NVML."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.system.links import nvlink_states
from meshrun.runner.system.nvml import handle

Part = tuple[str, str]  # part such as "GPU 3" or "GPU 3, NVLink 11", counter

# Fields of the GPU. Those that the driver or pynvml does not know yet are left out.
FIELDS = {
    "PCIe replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "ECC corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",  # since the driver was loaded
    "ECC uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
    # Before Ampere
    "retired pages, corrected": "NVML_FI_DEV_RETIRED_SBE",
    "retired pages, uncorrected": "NVML_FI_DEV_RETIRED_DBE",
    "retired pages, pending": "NVML_FI_DEV_RETIRED_PENDING",
    # From Ampere on
    "remapped rows, corrected": "NVML_FI_DEV_REMAPPED_COR",
    "remapped rows, uncorrected": "NVML_FI_DEV_REMAPPED_UNC",
    "remapped rows, pending": "NVML_FI_DEV_REMAPPED_PENDING",
    "remapped rows, failure": "NVML_FI_DEV_REMAPPED_FAILURE",
    "recovery action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
}
# Nanoseconds during which the clocks were throttled, accumulated by the driver.
TIMES = {
    "slowed by power cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "slowed by heat": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "slowed by sync boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
    "slowed by board limit": "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT",
    "slowed by heat, driver": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "slowed by heat, hardware": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "slowed by power brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
HEAT = "slowed by heat"
# Without these times: whether the clocks are throttled at this moment.
REASONS = {
    "slowed now by power cap": "nvmlClocksEventReasonSwPowerCap",
    "slowed now by sync boost": "nvmlClocksEventReasonSyncBoost",
    "slowed now by heat, driver": "nvmlClocksEventReasonSwThermalSlowdown",
    "slowed now by heat, hardware": "nvmlClocksEventReasonHwThermalSlowdown",
    "slowed now by power brake": "nvmlClocksEventReasonHwPowerBrakeSlowdown",
}
# Of one link, up to Hopper. On Hopper, the field values of the same meaning are always 0.
LINK_ERRORS = {
    "replays": "NVML_NVLINK_ERROR_DL_REPLAY",
    "recoveries": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "CRC flit errors": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
    "CRC data errors": "NVML_NVLINK_ERROR_DL_CRC_DATA",
    "ECC data errors": "NVML_NVLINK_ERROR_DL_ECC_DATA",
}
# Of one link, from Blackwell on. Error rates are left out: they follow from these.
LINK_FIELDS = {
    "symbol errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
    "effective errors": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    "link recoveries": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "link recoveries failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "receive errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "receive errors, remote": "NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "malformed packets": "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "buffer overruns": "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "local link integrity errors": "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "transmit discards": "NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS",
}
# Data sent and received through one link, without protocol: bytes of a unit. Up to Hopper; from Blackwell on.
LINK_TRAFFIC = (
    (1024, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
    (1, "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"),
)
# What a load changes, beside CALLS.
LOAD_FIELDS = {"memory temperature": "NVML_FI_DEV_MEMORY_TEMP"}
LOAD_CALLS = ("power", "SM clock", "temperature")
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # of the union, by nvmlValueType_t

# MHz, degrees C, W. Clocks and PCIe generation of an idle GPU are low; its PCIe width is not.
CALLS: dict[str, Callable[[Any, Any], float | str]] = {
    "SM clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "SM clock, most": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "memory clock, most": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "power": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power limit": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "performance state": lambda nvml, gpu: f"P{nvml.nvmlDeviceGetPerformanceState(gpu)}",
    "PCIe width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
}


def gpu_counters(uuid: str, local: int) -> dict[Part, float | str]:
    """Counters and states of one GPU; those that NVML does not report are absent. local: its number on the
    host."""
    try:
        nvml, gpu = handle(uuid)
    except UserError:
        return {}
    name = f"GPU {local}"
    errors = _xid_errors(nvml, uuid)
    found: dict[Part, float | str] = {(name, counter): value for counter, value in _own(gpu, nvml).items()}
    if errors is not None:
        found[name, "Xid errors"] = ", ".join(map(str, errors)) or "none"
    states: list[bool] = []
    with suppress(nvml.NVMLError):
        states.extend(nvlink_states(gpu, nvml))
    for link, up in enumerate(states):
        part = f"{name}, NVLink {link}"
        found[part, "state"] = "up" if up else "down"
        found |= {(part, counter): value for counter, value in _of_link(gpu, link, nvml).items()}
    return found


def nvlink_traffic(uuid: str) -> dict[str, tuple[float, float]]:
    """Bytes of data sent and received so far through each active NVLink of one GPU, by "NVLink 11".

    Links whose counters NVML does not report are absent.
    """
    try:
        nvml, gpu = handle(uuid)
    except UserError:
        return {}
    states: list[bool] = []
    with suppress(nvml.NVMLError):
        states.extend(nvlink_states(gpu, nvml))
    found = {}
    for link in (number for number, up in enumerate(states) if up):
        for unit, *names in LINK_TRAFFIC:
            counts = _fields(gpu, dict(zip(("sent", "received"), names, strict=True)), nvml, link)
            if len(counts) == 2:
                found[f"NVLink {link}"] = (unit * counts["sent"], unit * counts["received"])
                break
    return found


def load_readings(gpu: Any, nvml: Any) -> dict[str, float]:
    """Power (W), SM clock (MHz) and temperatures (degrees C) of one GPU; those not reported are absent."""
    found = _fields(gpu, LOAD_FIELDS, nvml)
    for name in LOAD_CALLS:
        with suppress(nvml.NVMLError):
            found[name] = float(CALLS[name](nvml, gpu))
    return found


def _own(gpu: Any, nvml: Any) -> dict[str, float | str]:
    found: dict[str, float | str] = dict(_fields(gpu, FIELDS, nvml))
    times = {name: nanoseconds / 1e9 for name, nanoseconds in _fields(gpu, TIMES, nvml).items()}
    if any(name.startswith(f"{HEAT},") for name in times):
        times.pop(HEAT, None)  # otherwise heat would count twice
    found |= times or _reasons(gpu, nvml)
    for name, call in CALLS.items():
        with suppress(nvml.NVMLError):
            found[name] = call(nvml, gpu)
    return found


def _xid_errors(nvml: Any, uuid: str) -> list[int] | None:
    """Errors that the driver reports (Xid), of any process that uses this GPU, since the first call for it.

    Their numbers, in their order; None if NVML does not report them.
    """
    events = _xid_events(nvml, uuid)
    if events is None:
        return None
    queue, found = events
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(queue, 0)
        except nvml.NVMLError:  # a time-out: no more
            return found
        found.append(int(event.eventData))


@cache
def _xid_events(nvml: Any, uuid: str) -> tuple[Any, list[int]] | None:
    """A queue of a GPU's errors, for the lifetime of the process, and the numbers read from it so far."""
    try:
        queue = nvml.nvmlEventSetCreate()
        gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, queue)
    except nvml.NVMLError:
        return None
    return queue, []


def _reasons(gpu: Any, nvml: Any) -> dict[str, float]:
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except nvml.NVMLError:
        return {}
    return {name: float(bool(mask & getattr(nvml, constant))) for name, constant in REASONS.items()}


def _of_link(gpu: Any, link: int, nvml: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, constant in LINK_ERRORS.items():
        with suppress(nvml.NVMLError):
            found[name] = nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, getattr(nvml, constant))
    return found | _fields(gpu, LINK_FIELDS, nvml, link)


def _fields(gpu: Any, constants: dict[str, str], nvml: Any, link: int | None = None) -> dict[str, float]:
    """Values of the fields that the GPU supports, for the whole GPU or for one link."""
    known = {name: getattr(nvml, constant) for name, constant in constants.items() if hasattr(nvml, constant)}
    fields = [field if link is None else (field, link) for field in known.values()]
    try:
        values = nvml.nvmlDeviceGetFieldValues(gpu, fields)
    except nvml.NVMLError:
        return {}
    return {
        name: float(getattr(one.value, MEMBERS[one.valueType]))
        for name, one in zip(known, values, strict=True)
        if one.nvmlReturn == nvml.NVML_SUCCESS
    }

"""NVML with the counters of one GPU: what pynvml says of it, and what of it a GPU does not have."""

from __future__ import annotations

from types import SimpleNamespace

import nvml
from nvml import NVMLError

VALUE_TYPES = {"dVal": 0, "uiVal": 1, "ulVal": 2, "ullVal": 3, "sllVal": 4, "siVal": 5, "usVal": 6}


class Nvml(nvml.Nvml):
    """fields: the value of each field that the GPU has; of one link by (field, link). errors: of a link.

    calls: what other functions return; one that is missing is not supported. xids: errors of the GPU that are
    reported next; None: it reports none.
    """

    NVML_SUCCESS = 0
    NVML_FI_DEV_ECC_SBE_VOL_TOTAL = 3
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL = 4
    NVML_FI_DEV_RETIRED_SBE = 29
    NVML_FI_DEV_RETIRED_DBE = 30
    NVML_FI_DEV_RETIRED_PENDING = 31
    NVML_FI_DEV_PERF_POLICY_POWER = 74
    NVML_FI_DEV_PERF_POLICY_THERMAL = 75
    NVML_FI_DEV_PERF_POLICY_SYNC_BOOST = 76
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT = 77
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_FI_DEV_PCIE_REPLAY_COUNTER = 94
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_FI_DEV_REMAPPED_COR = 142
    NVML_FI_DEV_REMAPPED_UNC = 143
    NVML_FI_DEV_REMAPPED_PENDING = 144
    NVML_FI_DEV_REMAPPED_FAILURE = 145
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES = 202
    NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 204
    NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS = 206
    NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS = 207
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS = 208
    NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS = 209
    NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS = 211
    NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS = 212
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS = 213
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214
    NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS = 219
    NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS = 221
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271
    NVML_NVLINK_ERROR_DL_REPLAY = 0
    NVML_NVLINK_ERROR_DL_RECOVERY = 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2
    NVML_NVLINK_ERROR_DL_CRC_DATA = 3
    NVML_NVLINK_ERROR_DL_ECC_DATA = 4
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    nvmlEventTypeXidCriticalError = 0x8
    nvmlClocksEventReasonSwPowerCap = 0x4
    nvmlClocksEventReasonSyncBoost = 0x10
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    def __init__(
        self,
        links: list[int] | None = None,
        fields: dict[object, float] | None = None,
        errors: dict[tuple[int, int], int] | None = None,
        calls: dict[object, int] | None = None,
        failing: dict[str, NVMLError] | None = None,
        xids: list[int] | None = None,
    ) -> None:
        super().__init__(links or [], failing)
        self.xids, self.listening = xids, False
        self.fields, self.errors, self.calls = fields or {}, errors or {}, calls or {}
        self.type = "ullVal"  # the member of the union that has the values

    def _told(self, name: object) -> int:
        self._answer("call")
        if name not in self.calls:
            raise nvml.NotSupported("Not Supported")
        return self.calls[name]

    def nvmlDeviceGetFieldValues(self, device: str, fields: list[object]) -> list[SimpleNamespace]:
        self._answer("fields")
        return [self._field(field) for field in fields]

    def _field(self, field: object) -> SimpleNamespace:
        if field not in self.fields:
            return SimpleNamespace(nvmlReturn=3, valueType=0, value=SimpleNamespace(dVal=0.0))
        value = SimpleNamespace(**{self.type: self.fields[field]})
        return SimpleNamespace(nvmlReturn=0, valueType=VALUE_TYPES[self.type], value=value)

    def nvmlDeviceGetNvLinkErrorCounter(self, device: str, link: int, counter: int) -> int:
        if (link, counter) not in self.errors:
            raise nvml.NotSupported("Not Supported")
        return self.errors[link, counter]

    def nvmlEventSetCreate(self) -> list[int]:
        if self.xids is None:
            raise nvml.NotSupported("Not Supported")
        return self.xids

    def nvmlDeviceRegisterEvents(self, device: str, types: int, queue: list[int]) -> None:
        assert types == self.nvmlEventTypeXidCriticalError
        self.listening = True

    def nvmlEventSetWait_v2(self, queue: list[int], timeoutms: int) -> SimpleNamespace:
        assert self.listening
        assert timeoutms == 0
        if not queue:
            raise NVMLError("Timeout")
        return SimpleNamespace(eventType=self.nvmlEventTypeXidCriticalError, eventData=queue.pop(0))

    def nvmlDeviceGetClockInfo(self, device: str, clock: int) -> int:
        return self._told(("clock", clock))

    def nvmlDeviceGetMaxClockInfo(self, device: str, clock: int) -> int:
        return self._told(("most", clock))

    def nvmlDeviceGetTemperature(self, device: str, sensor: int) -> int:
        return self._told(("temperature", sensor))

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        return self._told("power")

    def nvmlDeviceGetEnforcedPowerLimit(self, device: str) -> int:
        return self._told("power limit")

    def nvmlDeviceGetPerformanceState(self, device: str) -> int:
        return self._told("performance state")

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: str) -> int:
        return self._told("width")

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: str) -> int:
        return self._told("reasons")

"""Facts about the hardware and the process: GPUs and their links (NVML), networks, memory, error counters,
and the launcher's environment variables. It knows neither ranks nor distributed arrays. Others use `nvml`,
`gpu`, `links`, `counters`, `host_memory.host_memory` and `launcher`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.arrays")

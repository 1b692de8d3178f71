"""Facts of the hardware and of the process: GPUs and their links by NVML, networks, memory, error counters,
and what the launcher's environment variables say. It knows neither ranks nor arrays. Others use `nvml`,
`gpu`, `links`, `counters`, `host_memory.host_memory` and `launcher.environment`.
"""

"""Error counters and states of GPUs, NVSwitches, networks and processors, as drivers and the system report
them. It knows neither ranks nor distributed arrays. Others use `read.read_counters`, and of single parts what
they watch.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.arrays")

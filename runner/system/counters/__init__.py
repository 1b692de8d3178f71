"""Error counters and states of GPUs, NVSwitches, networks and processors."""

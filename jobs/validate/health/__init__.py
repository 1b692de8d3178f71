"""Whether the hardware is healthy apart from its speed: what counters mean, and alarms.

`counters.changes` weighs the counters read before and after a rung. `alarms` turns faults, wrong data, dead
ranks, drifts from a baseline and rates far below the hardware's limits into alarms of a verdict. This room
reads no counter itself.
"""

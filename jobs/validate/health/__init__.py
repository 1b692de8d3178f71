"""Health of the hardware beyond comparisons of siblings: counters, hardware limits and alarms.

`counters.changes` weighs the counters read before and after a rung. `hardware_limits` computes the rates that
the hardware allows. `alarms` turns faults, wrong data, dead ranks, drifts from a baseline and rates far below
the limits into alarms of a verdict. This room reads no counters itself.
"""

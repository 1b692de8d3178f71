"""Climb the ladder: rung by rung, once or repeatedly, within a time budget.

`ladder` is one climb and its verdict; `soak` repeats climbs and compares the rounds; `budget` fits a plan to
a time by the `costs` of the probe's calls; `part_rates` gives the rates of parts and pairs. This room uses a
probe; it knows neither ranks nor the command line.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.launch.cli", "click")

"""What lies between the stages of a function of whole arrays.

control_flow      what becomes of a loop or a condition on a value while the function is traced
loop_recording    traces a loop's body; with branches, traced_state, iteration_changes and loop_results
recorded_loop     a loop that was traced, for those who plan and run it
reductions        traces NumPy's; numbers: values of these as Python's numbers
cuts              decides which arrays one stage writes and the next one reads, by stage_costs
levels            grids of coarser cells

It knows neither devices, ranks nor array files. Others use `cuts.resolved` and `reductions.REDUCTIONS`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world", "meshrun.runner.storage")

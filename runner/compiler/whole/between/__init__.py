"""What lies between the stages of a function of whole arrays: `reductions` traces NumPy's, and `cuts`
decides which arrays one stage writes and the next one reads. It knows neither devices, ranks nor array files.
Others use `cuts.resolved` and `reductions.REDUCTIONS`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world", "meshrun.runner.storage")

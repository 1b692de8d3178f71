"""End a run that makes no progress, and report each rank's position. It knows neither jobs nor array files.
Others use `watchdog.Watchdog` and `progress`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")

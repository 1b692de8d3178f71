"""End a run that makes no progress, and report each rank's position. It does not know what is measured.
Others use `watchdog.Watchdog` and `progress`.
"""

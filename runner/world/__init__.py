"""The ranks of a run: hosts, devices, communicators, and how ranks end. `preflight` checks them before any
work, `watchdog` and `heartbeat` detect stuck ranks and lost hosts, `failure` reports the first error once,
`run_status` passes the outcome to the process that started the ranks. `group` moves arrays among ranks: all
of a run, or those along an axis of a `process_grid`. It knows neither jobs, the compiler nor distributed
arrays. Others use `world.open_world`, `World`, `group.Group` and `rank_process.run_as_rank`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.compiler", "meshrun.runner.arrays")

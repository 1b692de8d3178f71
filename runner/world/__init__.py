"""Who and where each rank is, its GPU, how it reaches the others, and how ranks end: `preflight` checks them
before any work, `watchdog` and `heartbeat` notice what is stuck or silent, `failure` tells the first error
once, `run_status` leaves the outcome for whoever started the ranks. It does not know what they compute.
Others use `world.open_world`, `World` and `rank_process.as_rank`.
"""

"""What every rank runs: the rooms behind `import meshrun`, on seven floors.

    1  errors, region, files,          errors, boxes of cells, files that appear whole,
       processes, lock                 what /proc says of processes, locks
    2  system, job, storage, report    facts of the hardware; what a job declares; array files; reports
    3  device, plan                    arrays and kernels on a CPU or GPU; decisions before any work
    4  comm                            messages between ranks
    5  world                           who and where the ranks are, and how they end
    6  pipeline                        blocks and chunks on their way through the ranks
    7  run                             a job from the first check to its record

A module imports its own room and lower floors; tests/unit/test_architecture.py checks it. Nothing here
imports `jobs` or `launch`. Programs import `meshrun`, not this package.
"""

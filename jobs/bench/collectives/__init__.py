"""`meshrun bench OPERATION`, `pingpong`, `scale`, `compare` and `plot`: the measurements of nccl-tests.

Here is what runs and measures: options and configuration, sessions, sweeps and timing. `output` prints and
records the results, and reads and compares records.

It may not know the copy benchmark or the lessons. Others use `jobs.bench.cli`, never these modules.
"""

"""`meshrun bench OPERATION`, `pingpong`, `scale`, `compare` and `plot`: the measurements of nccl-tests.

Here is what runs and measures: options and configuration, sessions, sweeps and timing. `output` prints and
records the results, and reads and compares records.

It knows neither copies nor lessons. Others use `jobs.bench.cli`, never these modules.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench.copy", "meshrun.jobs.bench.lessons")

"""`meshrun validate`: a verdict on the interconnect that names the faulty part.

`cli` reads the command line; `run` executes a validation on ranks or on a simulation; `ladder` climbs rung by
rung. Each rung measures (`measurements`) through a `probe`, and `localize` finds the slow part. All of these
share `plan`, `topology` and `verdict`. It knows no benchmarks. The entry point is `cli.validate`.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench",)

"""`meshrun bench`: the measurements of nccl-tests and nvbandwidth, and lessons on memory performance.

`cli` has the commands and `command_base` what they share; `collectives`, `copy` and `lessons` measure. It
knows no validation. Others use `jobs.bench.cli:bench`, the entry point.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate",)

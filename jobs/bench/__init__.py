"""`meshrun bench`: the measurements of nccl-tests and nvbandwidth, and lessons on memory performance.

`cli` has the commands and `command_base` what they share; `collectives`, `copy` and `lessons` measure.
It may not know jobs/validate. Others use `jobs.bench.cli:bench`, the entry point.
"""

"""`meshrun bench`: the measurements of nccl-tests and nvbandwidth, and lessons on memory performance.

`cli` has the commands, `command_base` what they share; a folder each: `collectives`, `copy` and the lessons.
It may not know jobs/validate. Others use `jobs.bench.cli:bench`, the entry point.
"""

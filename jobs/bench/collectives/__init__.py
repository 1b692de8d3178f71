"""`meshrun bench OPERATION`, `pingpong`, `scale`, `compare` and `plot`: the measurements of nccl-tests.

It may not know the copy benchmark or the lessons. Others use `jobs.bench.cli`, never these modules.
"""

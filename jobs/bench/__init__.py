"""`meshrun bench`: the measurements of nccl-tests, on the ranks that run array jobs."""

"""What the commands of `meshrun bench` measure: an operation (`run`), messages of two ranks (`pingpong`),
growing numbers of ranks (`scaling`), NCCL's algorithms (`tuning_sweep`), calls that overlap (`overlap`).

Each opens sessions of an operation and prints a table of its own. Only the command line may know them.
"""

"""`meshrun bench replay`: repeat the communication of a run on these ranks, and compare its times.

`source` reads a record of meshrun or a log of NCCL, `wire` divides a record's time into wire, waiting and the
rest, `repeat` repeats the operations on these ranks, and `run` prints both side by side.
It knows no validation.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate",)

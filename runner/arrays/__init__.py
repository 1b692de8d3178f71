"""Arrays that are split over the ranks: blocks with halos, read from files, exchanged, written to files.

`load` and `store` move blocks from and to files, `halo/` fills halos, `block_layout` chooses how a block lies
in memory, `inputs` and `fingerprint` say whether files are those that a run began with. It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)

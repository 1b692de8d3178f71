"""Arrays that are split over the ranks. `distributed_array` is the data class that runs, steps and jobs hold:
a layout, this rank's padded block, and how wide its halo is valid. `load`, `store`, `reduce`, `redistribute`
and `halo/exchange` are its verbs; `exact_sum` adds floats without rounding. `tools/` has NumPy's functions of
whole arrays, `particles` rows that move between ranks, `finite` the first cell that is not finite.
`block_layout` chooses how a block lies in memory; `inputs` and `fingerprint` say whether files are those that
a run began with. It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)

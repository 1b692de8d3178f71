"""How each rung of the ladder measures: which ranks meet, who their siblings are, which parts are on the way.

One module for each kind of rung (`single_gpu`, `intra_node`, `inter_node`, `allreduce`, `leaf_switches`);
`schedule` says who meets whom and `repeats` how often. Measures through `probe.api` only; `localize` finds
the slow part in what is measured, and `jobs.measure.outliers` says what is slow.
"""

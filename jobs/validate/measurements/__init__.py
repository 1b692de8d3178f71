"""How each rung measures: which ranks exchange data, their siblings, and the parts on their paths.

One module for each kind of rung (`single_gpu`, `intra_node`, `inter_node`, `allreduce`, `leaf_switches`);
`schedule` pairs the ranks, `repeats` chooses the number of samples. This room measures through `probe.api`
only; `localize` finds the slow part, and `jobs.measure.outliers` decides what is slow.
"""

"""The option `verify`: recompute results by another method and compare them with what is on disk.

`results` verifies a map job or a reduction, `steps` a run that took time steps, one tile of cells at a time
as in `tiles`, and `compare` holds the rules of equality. It may not use the halo and the blocks of the run
that it verifies. Others use `results.verify`, `results.verify_result`, `steps.verify_steps` and `compare`.
"""

"""The option `verify`: recompute results by another method and compare them with what is on disk.

`results` verifies a map job or a reduction, `steps` a run that took time steps, one tile of cells at a time
as in `tiles`, and `compare` holds the rules of equality. It knows neither distributed arrays nor time steps,
which it verifies. Others use `results.verify`, `results.verify_result`, `steps.verify_steps` and `compare`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.arrays", "meshrun.runner.steps")

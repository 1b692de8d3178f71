"""Reports on a run: times of phases and spans, the limiting stage, progress, the timeline, tables and the
record. Plain values in, text and pictures out. It knows no ranks. Others use `phases.Phases`, `spans`,
`units`, `table` and `record`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world",)

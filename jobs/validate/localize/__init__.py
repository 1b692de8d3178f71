"""Find the part that explains slow measurements.

`observations` is the table of measurements, `set_cover` searches for the part that explains most of the slow
ones, `retest` measures suspects again, `findings` describes the result. This room knows no measurements: a
rung provides its measurements as a `retest.RungMeasurement`.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate.measurements",)

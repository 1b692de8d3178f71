"""From slow measurements to the part that explains them.

`observations` is the table of measurements, `set_cover` the search for the part that explains most of the
slow ones, `retest` the loop that measures suspects again, `findings` the result in a person's terms. Knows no
probe and no rung: a rung hands in its measurements as a `retest.RungMeasurement`.
"""

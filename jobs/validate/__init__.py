"""`meshrun validate`: a verdict on the interconnect, with the culprit's name.

`cli` reads the command line into `options`, `run` starts a validation on ranks or on a simulation,
`validation` climbs the `ladder` once or again and again (`soak`), within a `budget`. Each rung measures
(`measurements`) through a `probe` and hands what it measured to `localize`.
"""

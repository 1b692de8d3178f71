"""The protocol of measurements on a fleet, and its implementation by the ranks of a run.

`api` is the protocol, and all that measurements, localization and reports know of the machines. `rank_probe`
implements it with ranks (`single_rank`, `multi_rank`; `gpu_load` reads power and clocks meanwhile),
`jobs.validate.simulation` with a model. A probe returns seconds; it knows neither measurements nor findings.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate.measurements", "meshrun.jobs.validate.localize")

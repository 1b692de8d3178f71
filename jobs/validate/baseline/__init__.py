"""Compare a run with earlier healthy runs of the same fleet, stored in a file.

`compare` selects the runs, compares, judges the distance of rates from earlier ones, and saves;
`baseline_run` is one stored run; `json` and `sqlite` are the two formats. This room knows reports; it knows
neither probes nor measurements.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate.probe", "meshrun.jobs.validate.measurements")

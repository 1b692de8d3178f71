"""Report of a validation: the model, its wording, the remedies, and one module for each output format.

Others use `model.Report` and its parts, `wording` for the figures, names and sentences that all formats
share, `remedies.remedies` for the next steps, and `formats.<name>.text(report)`. This room knows neither
measurements nor findings.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate.measurements", "meshrun.jobs.validate.localize")

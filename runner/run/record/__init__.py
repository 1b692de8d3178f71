"""The record of a run: `record_builder` gathers the parts that all ranks contribute to, `forecast_record` has
the forecast beside what was measured, and `run_record` is what a run returns in Python. It neither runs nor
verifies anything: it knows neither maps nor time steps.
"""

MAY_NOT_IMPORT = ("meshrun.runner.maps", "meshrun.runner.steps")

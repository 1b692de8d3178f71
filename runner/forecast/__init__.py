"""All of `meshrun plan`: time and memory of a run, from a machine's rates and the shapes of its arrays.

`plan` goes from the options to the record, by `maps`, `steps` or `jobs`, and `table` prints it. `machine` has
the rates, `calibrate` measures them, `place` says what ranks there can do, `model` is the time of a map run
and its comparison with a real one. It knows neither the command line nor records. Others use
`plan.plan_record`, `place.Place`, `jobs.JobForecast`, `machine` and `model.beside_run`.
"""

MAY_NOT_IMPORT = ("meshrun.launch.cli", "click", "meshrun.runner.run")

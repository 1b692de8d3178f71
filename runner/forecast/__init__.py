"""All of `meshrun plan`: time and memory of a run, from a machine's rates and the shapes of its arrays.

`machine` has the rates, `forecast` the model of runs of blocks, `job_forecast` that of other jobs, `planned`
and its neighbours make the record. It knows neither devices, ranks nor records.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world", "meshrun.runner.run")

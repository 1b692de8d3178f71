"""The options of a run: what they are called, which values they take, and where they apply.

It knows neither jobs, devices nor ranks. Others read `step_options` and `stream_options`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.device", "meshrun.runner.world")

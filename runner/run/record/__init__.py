"""Parts of records: `places` tells where a run took place, and `run_record` is what a run returns in
Python. It neither runs nor verifies anything: it knows neither maps nor time steps.
"""

MAY_NOT_IMPORT = ("meshrun.runner.maps", "meshrun.runner.steps")

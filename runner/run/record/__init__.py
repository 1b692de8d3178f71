"""The record of a run: `build` puts it together, `places` tells where the run took place, and `printed` is
the dict that a run returns in Python, which shows itself. It knows neither maps nor time steps.
"""

MAY_NOT_IMPORT = ("meshrun.runner.maps", "meshrun.runner.steps")

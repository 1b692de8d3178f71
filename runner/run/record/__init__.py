"""The record of a run as Python gets it: `printed` is the dict that a run returns, which shows itself. It
knows neither maps nor time steps.
"""

MAY_NOT_IMPORT = ("meshrun.runner.maps", "meshrun.runner.steps")

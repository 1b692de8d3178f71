"""Ends a run that makes no progress and says where each rank is. It knows nothing of what is measured. Others
use `watchdog.Watchdog` and `progress`.
"""

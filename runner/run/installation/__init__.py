"""Commands that check and measure an installation: `doctor` shows the facts of all ranks, `selftest` runs
verified jobs on this machine (with `mutations`, deliberate bugs that verification must detect). Others
use `doctor.main` and `selftest.main`.
"""

"""What every measuring job measures with, once: jobs/bench and jobs/validate import it, it imports neither.

outliers            statistics of samples, and the rules that call a measurement slow
"""

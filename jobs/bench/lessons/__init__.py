"""`meshrun bench memory`: what a GPU's memory is fast at, one lesson a module."""

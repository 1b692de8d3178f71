"""`bench memory transfer`: copies between host and GPU, by the kind of host memory and by size."""

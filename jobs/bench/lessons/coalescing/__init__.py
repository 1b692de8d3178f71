"""`bench memory coalescing`: a kernel's bandwidth by stride and by misalignment."""

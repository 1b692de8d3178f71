"""A run against earlier healthy runs of the same fleet."""

"""`bench memory transpose`: transposes of a matrix, against a plain copy."""

"""`bench memory transpose`: transposes of a matrix beside a plain copy."""

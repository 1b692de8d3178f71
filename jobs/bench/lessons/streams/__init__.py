"""`bench memory streams`: a map in chunks on one to four streams."""

"""`bench memory pool`: allocation from the driver and from pools."""

"""The instances of each kernel file that measurements launch."""

INSTANCES: dict[str, tuple[str, ...]] = {}

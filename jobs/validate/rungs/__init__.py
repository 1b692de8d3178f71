"""How each rung measures: its rounds, its siblings, its suspects."""

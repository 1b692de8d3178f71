"""What a run tells: `record` (the JSON), `summary` (the table), `progress` (while it runs)."""

"""Rows to text and pictures: what a run shows while it runs, at its end, and in files.

Modules here get plain values (rows, dicts, spans) and know neither ranks nor devices nor formats; what is
gathered over ranks comes from `record_builder`. Others use `record` (envelope, json_text, write_json, plain),
`table` (aligned lines), `units` (quantities as text), `summary.render`, `plan_table.render`,
`timeline.write_timeline`, `bottleneck.combine`, and the bars of `progress` and `stream_progress`.
"""

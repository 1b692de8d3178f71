"""A report as text: one module for each format, each with `text(report) -> str`.

terminal, json, html, junit (CI systems), prometheus (node_exporter's textfile collector) and nagios (one line
for a monitor); `json.read` is the inverse of `json.text`. A format defines the layout of a report;
its content comes from the model, `wording` and `remedies`.
"""

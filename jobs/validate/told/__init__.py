"""A report as text: terminal, JSON, HTML, JUnit, Prometheus, Nagios."""

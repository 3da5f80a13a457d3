"""Metrics for Prometheus: which there are, what a report gives for each, and the text in which they are written."""

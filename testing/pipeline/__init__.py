"""Faults, kills, damaged outputs, S3 servers and Ray nodes that tests and benchmarks of ``pipeline`` share."""

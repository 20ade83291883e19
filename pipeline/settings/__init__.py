"""Settings of a run as data: parts of a configuration, and how they are built from plain data."""

"""Sinks: formats of published part files, staged units, and reading both back with checks.

Knows Arrow tables, the output's schema and the storage protocol. Does not know Ray, models, or which units exist.
Whatever reads or writes the output raises SinkError if the store fails again and again.
"""

from pipeline.sinks.formats import FORMATS, PartFormat, PartWriter, check_format

__all__ = ["FORMATS", "PartFormat", "PartWriter", "check_format"]

"""Sinks: how units are staged and how published part files are written.

Knows Arrow tables and the storage seam; knows nothing of Ray, models or which units exist.
"""

from pipeline.sinks.base import PartFormat, PartWriter
from pipeline.sinks.registry import FORMATS, check_format

__all__ = ["FORMATS", "PartFormat", "PartWriter", "check_format"]

"""A scheduled run in a process of its own, which kills itself (signal 9) at a named boundary.

Arguments: the folder or URL with ``in`` and ``out``, the model, the boundary, 0 or 1 (before or after it), and the
options of the file system as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from testing.pipeline.faults import FaultyStorage, KillAt
from testing.pipeline.scheduled_table import ScheduledTable


def main() -> None:
    """One run; ends normally only if the boundary is never met."""
    place, model, boundary, after, options = sys.argv[1:]
    table = ScheduledTable(place, Path(model), json.loads(options))
    table.run(storage=FaultyStorage(table.storage, KillAt(boundary=boundary, after=after == "1")))


if __name__ == "__main__":
    main()

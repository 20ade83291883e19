"""Traces a run up to its first unit: which files of the product it passes, and how often it moves between them.

Run as a module, in a process of its own, so that nothing is loaded or cached before. Prints a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from testing.repository import ROOT

__all__ = ["trace"]

_PRODUCT = ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs")


def trace(folder: Path) -> NoReturn:
    """Run two prompts on the tiny model into ``folder``, without Ray, and end as the first unit is asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline import layout
    from pipeline.commands.run import run_on
    from pipeline.config import RunConfig
    from pipeline.storage.open import open_storage
    from testing.pipeline.fakes import InlineExecutor

    files: list[str] = []  # in the order in which they are entered

    def entered(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(ROOT)):
            path = os.path.relpath(code.co_filename, ROOT)
            if path.startswith(_PRODUCT) and files[-1:] != [path]:
                files.append(path)

    class Stops(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> NoReturn:
            sys.setprofile(None)
            print(json.dumps({"files": sorted(set(files)), "moves": len(files)}), flush=True)
            os._exit(0)

    pq.write_table(pa.table({"prompt": ["One.", "Two."]}), folder / "in.parquet")
    given = {"input": str(folder / "in.parquet"), "output": str(folder / "out"), "model": "tiny"}
    sys.setprofile(entered)
    config = RunConfig.from_mapping(given)
    run_on(Stops(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    raise AssertionError("the run asked for no unit")


if __name__ == "__main__":
    trace(Path(sys.argv[1]))

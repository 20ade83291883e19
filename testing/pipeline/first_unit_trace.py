"""Traces a run up to its first unit: the files of the product that it enters, and its moves between files.

A file is entered where one of its functions is called; an import does not count. Run as a module, in a process of its
own, so that nothing is loaded or cached before. Prints a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from testing.repository import ROOT

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

    path = str(folder / "in.parquet")
    files: list[str] = []  # in order of entry
    given: set[str] = set()

    def entered(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and not _is_import(frame):
            name = os.path.relpath(code.co_filename, ROOT)
            if name.startswith(_PRODUCT):
                files.extend([] if files[-1:] == [name] else [name])
                given.update(name for value in frame.f_locals.values() if _holds(value, path))

    class Stops(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> NoReturn:
            sys.setprofile(None)
            found = {"files": sorted(set(files)), "moves": len(files), "dataset": sorted(given)}
            print(json.dumps(found), flush=True)
            os._exit(0)

    pq.write_table(pa.table({"prompt": ["One.", "Two."]}), path)
    sys.setprofile(entered)
    config = RunConfig.from_mapping({"input": path, "output": str(folder / "out"), "model": "tiny"})
    run_on(Stops(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    raise AssertionError("the run asked for no unit")


def _is_import(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"] != "__main__"


def _holds(value: Any, path: str) -> bool:
    """Whether an argument is the input's path, or a configuration that has it."""
    return value is path or (type(value).__name__ == "RunConfig" and value.input is path)


if __name__ == "__main__":
    trace(Path(sys.argv[1]))

"""The cost of looking at, and continuing, an output of a million units.

    python -m benchmarks.pipeline.large_ledger [--units 1000000]

The ledger is written by the product, without generating: of a table of one-row units all but the last thousand are
committed. Then processes of their own ask for the status, plan the rest of the run, and ask for the status again.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import table, write_result
from pipeline import layout
from pipeline.commands.begin import begin, prepare_output
from pipeline.commands.status import status
from pipeline.commit.index import Index
from pipeline.commit.lease import hold_lease
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from pipeline.types import CommitRecord, Unit

_LEFT = 1_000
_AT_ONCE = 500
"""Units that a commit has, as of a run of many actors."""


def main(argv: Sequence[str] | None = None) -> None:
    """Make the output, measure, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep the output here")
    parser.add_argument("--measure", choices=sorted(_MEASURED), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure is not None:
        begun = time.perf_counter(), time.process_time()
        _MEASURED[args.measure](_config(args.folder))
        print(f"{time.perf_counter() - begun[0]:.1f} s ({time.process_time() - begun[1]:.1f} s of a CPU)")
        return
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if not (folder / "out").exists():
            _commit(folder, args.units)
        rows = [(name, *(_seconds(name, folder) for _ in range(2))) for name in ("status", "plan", "status")]
    body = table(("", "first", "again"), rows)
    print(body)
    if args.folder is None:
        command = f"python -m benchmarks.pipeline.large_ledger --units {args.units}"
        write_result("large-ledger", f"A ledger of {args.units:,} units", command, body)


def _config(folder: Path) -> RunConfig:
    return RunConfig(input=str(folder / "in.parquet"), output=str(folder / "out"), model="tiny", unit_rows=1)


def _commit(folder: Path, units: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"prompt": ["p"] * units, "key": range(units)})
    pq.write_table(rows, folder / "in.parquet", row_group_size=4096)
    config = _config(folder)
    storage = open_storage(config.output, layout.SCRATCH)
    with hold_lease(storage) as lease, Index() as index:
        begun = begin(config, storage, lease, index, prepare_output(config, storage, lease))
        work = itertools.islice(iter(index.units), units - min(_LEFT, units // 2))
        while some := list(itertools.islice(work, _AT_ONCE)):
            begun.ledger.commit(list(_records(some)))


def _records(units: Sequence[Unit]) -> Iterator[CommitRecord]:
    for unit in units:
        yield CommitRecord(
            unit_id=unit.unit_id, file_key="in.parquet", first_row=unit.rows.first_row, num_rows=1, failed_rows=0,
            samples=1, prompt_tokens=90, completion_tokens=160, decode_forwards=40, rows_forwarded=400,
            staged_bytes=4000, data_sha256=unit.unit_id * 3, rows_sha256=unit.unit_id * 3,
            input_sha256=unit.unit_id * 3, engine_seconds=0.5,
        )  # fmt: skip


def _status(config: RunConfig) -> None:
    status(config.output)


def _plan(config: RunConfig) -> None:
    storage = open_storage(config.output, layout.SCRATCH)
    with hold_lease(storage) as lease, Index() as index:
        begin(config, storage, lease, index, prepare_output(config, storage, lease))
        index.units.mark_work(retry_failed=False)


_MEASURED = {"status": _status, "plan": _plan}


def _seconds(name: str, folder: Path) -> str:
    argv = [sys.executable, "-m", "benchmarks.pipeline.large_ledger", "--measure", name, "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    main()

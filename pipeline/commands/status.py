"""``status``: counts committed, published and failed rows of an output; never disturbs a run that writes to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline import layout
from pipeline.commands.published_output import dropped_by_reason
from pipeline.commit.index import Index
from pipeline.commit.lease import current_holder
from pipeline.commit.ledger import read_ledger
from pipeline.commit.lists import count_units
from pipeline.commit.manifest import Manifest
from pipeline.commit.run_record import RunState
from pipeline.commit.usage import read_usage
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.types import Totals


def status(output: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of an output as plain values.

    Args:
        output: the folder or URL of a run.
        storage_options: keyword arguments of the URL's file system.

    Returns:
        Counts of units and rows that are planned (as of the last run's beginning), committed and published; of
        failed rows by cause, a line for each with its remedy and an example; of units by attempt; retries that differed
        from the run; the publications; the use of actors (see :mod:`pipeline.commit.usage`); the writer, if any. Of an
        output of :func:`pipeline.filter`: its source and settings, and the rows that are kept, and dropped by reason.

    Raises:
        DamagedError: the state cannot be read.
        OutputError: no run was begun there.
    """
    storage = open_storage(output, layout.SCRATCH, storage_options)
    state = RunState.load_begun(storage)
    manifest = Manifest.load(storage)
    if state.derived is not None:
        return _status_of_filtered(storage, state, manifest)
    with Index() as index:
        read_ledger(storage, index.records, state.begun)
        total, attempts = index.records.totals(), index.records.attempts()
    published = sum(count_units(storage, publication) for publication in manifest.publications)
    holder, used = current_holder(storage), read_usage(storage, state.begun)
    return {
        "output": storage.url,
        "units_planned": state.units,
        "rows_planned": state.rows,
        "units_committed": total.units,
        "rows_committed": total.rows,
        "rows_failed": total.failed_rows,
        "failed_by_cause": [own.line for own in total.failed_by_cause],
        **({"unparsed": dict(total.unparsed)} if total.unparsed else {}),
        "units_by_attempt": attempts,
        **({"retries": _retries(state, total)} if state.retries else {}),
        "samples": total.samples,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "tokens_per_forward": total.tokens_per_forward,
        "prefix_cacheability": total.prefix_cacheability,
        "decode_forwards": total.decode_forwards,
        "rows_forwarded": total.rows_forwarded,
        "drafts": total.drafts,
        "gpu_seconds": used.accelerators,
        "cpu_seconds": used.cpus,
        "units_published": published,
        "rows_published": manifest.rows,
        "publications": [p.name for p in manifest.publications],
        "crash_notes": len(storage.keys(layout.CRASHES)),
        "being_written": holder is not None,
        "writer": None if holder is None else holder.describe(),
    }


def _retries(state: RunState, total: Totals) -> list[dict[str, Any]]:
    """Of each retry that differed from the run its number in the column ``retry``, how it differed, and its rows."""
    return [
        {"number": own.number, "differs": own.describe(), "rows": total.retried.get(str(own.number), 0)}
        for own in state.retries
    ]


def _status_of_filtered(storage: Storage, state: RunState, manifest: Manifest) -> dict[str, Any]:
    assert state.derived is not None
    holder = current_holder(storage)
    return {
        "output": storage.url,
        "made_by": state.derived.command,
        "source": state.derived.source,
        "source_publications": state.fingerprint["source.publications"],
        "settings": {name: value for name, value in state.fingerprint.items() if name.startswith("filter.")},
        "rows_read": state.rows,
        "rows_published": manifest.rows,
        "rows_dropped": sum(p.dead_letters.rows for p in manifest.publications if p.dead_letters is not None),
        "dropped_by_reason": dropped_by_reason(storage, manifest, state.fingerprint["column_prefix"]),
        "publications": [p.name for p in manifest.publications],
        "being_written": holder is not None,
        "writer": None if holder is None else holder.describe(),
    }

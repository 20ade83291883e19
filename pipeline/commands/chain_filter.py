"""The filters at the end of a chain: each makes an output of the published rows of the stage before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline import layout
from pipeline.commands.chain_config import FilterStage
from pipeline.commands.chain_stage import naming
from pipeline.commands.filter import filter_on
from pipeline.commands.filter_result import FilterResult
from pipeline.commands.filter_source import FilteredOutput, open_filtered
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.progress.monitor import Monitor
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage

__all__ = ["run_filters"]


def run_filters(
    filters: Sequence[FilterStage], source: Storage, options: Mapping[str, Any], monitor: Monitor
) -> dict[str, FilterResult]:  # fmt: skip
    """Filter the output ``source``, then what is kept of it, and so on; the result of each by its name.

    A filter that is done already, of the same rows, does nothing. If the stage before has other rows now (new input
    files, a retry), it is made anew, by the same settings.

    Raises:
        PipelineError: as of :func:`pipeline.filter`; an error about settings names the stage.
    """
    results: dict[str, FilterResult] = {}
    for own in filters:
        opened, storage = open_filtered(source), open_storage(own.run.output, layout.SCRATCH, options)
        run = replace(own.run, input=source.url, output_format=opened.format)  # type: ignore[arg-type]  # any of them
        with naming(own.name):
            results[own.name] = done = filter_on(opened, storage, own.filter, _anew(opened, storage, run), options)
        monitor.filtered(own.name, done.rows, done.kept)
        source = storage
    return results


def _anew(source: FilteredOutput, storage: Storage, run: RunConfig) -> RunConfig:
    """The same, or to begin anew if what is there was made of other rows."""
    state = RunState.load(storage)
    if state is None or state.derived is None:
        return run
    same = all(state.fingerprint.get(name) == value for name, value in source.identity.items())
    return run if same else replace(run, mode="new")

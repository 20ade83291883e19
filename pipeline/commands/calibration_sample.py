"""The sample of rows that settings are found on, and the engine that generates for it, with the seconds that takes."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import tempfile
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import Job, resolve_job
from pipeline.plan.units import check_any_rows
from pipeline.prompts.model_files import check_model
from pipeline.prompts.tokenize import PROMPT_IDS, prepare_table
from pipeline.sources import Source, source_of
from pipeline.storage.local import LocalStorage
from pipeline.types import Slice, Unit
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table

PREFIX = "__wedlm_out_"
"""Of the result columns, so that they meet no column of the input."""


class CalibrationSample:
    """Prepared rows and an engine."""

    def __init__(self, job: Job, rows: int, given: Any) -> None:
        self._job, self._table = job, read_sample(job, rows, given)
        self._unit = Unit(
            unit_id="calibration", index=0, rows=Slice(file=0, first_row=0, num_rows=self._table.num_rows)
        )
        self._engine = load_engine(job, job.config.num_threads)

    def generate(self, **sampling: Any) -> tuple[pa.Table, float]:
        """Output rows with these sampling parameters in place of the configured ones, and the seconds they took.

        Column names are without prefix.
        """
        config = replace(self._job.config, sampling=replace(self._job.config.sampling, **sampling))
        begin = time.perf_counter()
        out = preview_table(replace(self._job, config=config), self._engine, self._unit, self._table)
        seconds = time.perf_counter() - begin
        return out.rename_columns([name.removeprefix(PREFIX) for name in out.column_names]), seconds


def read_sample(job: Job, rows: int, given: Any) -> pa.Table:
    """A prepared sample, in input order; which rows it has depends on the input and ``rows`` only.

    ``given``: the configuration's ``input``, for the error where it has no rows.
    """
    found = heapq.nsmallest(rows, job.sliced.slices(1), key=lambda piece: _lot(job.source, piece))
    check_any_rows(len(found), given)
    found.sort(key=lambda piece: (piece.file, piece.first_row))
    tables = []
    for _, own in itertools.groupby(found, key=lambda piece: piece.file):
        pieces = list(own)
        for piece, table in zip(pieces, job.sliced.read(pieces), strict=True):
            tables.append(prepare_table(table, Unit(unit_id="calibration", index=0, rows=piece), job))
    return pa.concat_tables(tables).combine_chunks()


def sample_token_ids(config: RunConfig, rows: int) -> list[list[int]]:
    """Token ids of the prompts of a sample of the input; rows whose prompt fails are left out.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    if rows < 1:
        raise ConfigError(f"rows={rows}: at least 1. Use 256.")
    check_model(config)
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        job = resolve_job(config, source_of(config, storage), storage)
        found: list[list[int] | None] = read_sample(job, rows, config.input)[PROMPT_IDS].to_pylist()
    return [ids for ids in found if ids]


def _lot(source: Source, piece: Slice) -> bytes:
    key = f"{source.files[piece.file].key}\x1f{piece.first_row}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest()

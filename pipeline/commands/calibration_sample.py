"""The sample of rows that is calibrated on, and the engine that generates for it, with the seconds that takes."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.plan.job import Job
from pipeline.plan.units import check_any_rows
from pipeline.prompts.tokenize import prepare_table
from pipeline.sources import Source
from pipeline.types import Slice, Unit
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import preview_table

__all__ = ["PREFIX", "CalibrationSample", "read_sample"]

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
    found = heapq.nsmallest(rows, job.source.slices(1), key=lambda piece: _lot(job.source, piece))
    check_any_rows(len(found), given)
    found.sort(key=lambda piece: (piece.file, piece.first_row))
    tables = []
    for _, own in itertools.groupby(found, key=lambda piece: piece.file):
        pieces = list(own)
        for piece, table in zip(pieces, job.source.read(pieces), strict=True):
            tables.append(prepare_table(table, Unit(unit_id="calibration", index=0, rows=piece), job))
    return pa.concat_tables(tables).combine_chunks()


def _lot(source: Source, piece: Slice) -> bytes:
    key = f"{source.files[piece.file].key}\x1f{piece.first_row}"
    return hashlib.blake2b(key.encode(), digest_size=8).digest()

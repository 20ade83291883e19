"""``verify --regenerate``: generates published rows once more and compares them to the bit.

Rows are drawn at random. Each is generated in one batch with all the others, in another order, and once more alone. A
difference is a problem of the verification, with its row, its first other token and the likely causes.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import layout
from pipeline.commands.run_report import load_sessions
from pipeline.commit.run_record import RunState
from pipeline.commit.sealed import seal
from pipeline.commit.usage import read_usage
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError
from pipeline.fingerprint import config_of, fingerprint_fields
from pipeline.plan.job import Job, resolve_job
from pipeline.prompts.model_files import check_model, resolved_model, smoothing_of
from pipeline.prompts.tokenize import prepare_table
from pipeline.sinks.staged import row_digests
from pipeline.sources import Source
from pipeline.storage.protocol import Storage
from pipeline.types import Slice, Unit
from pipeline.worker.engine_thread import EngineLike
from pipeline.worker.load_engine import load_engine, uses_gpu
from pipeline.worker.unit_worker import preview_table
from wedlm_base.version import VERSION

_COMPARED = ("messages", "text", "reasoning", "tool_calls", "token_ids", "finish_reason", "seed", "logprobs",
             "top_logprobs", "label", "logprob", "mean_logprob", "label_probabilities")  # fmt: skip
"""Result columns that are a function of the row, its settings and the model."""
WAYS = ("in one batch, in another order", "alone")


@dataclass(frozen=True, kw_only=True)
class Regeneration:
    """The result of generating rows once more.

    Attributes:
        rows: row ids that were generated, in the order of the output.
        left_out: rows that were drawn and not generated: they failed, or a retry with other settings did them.
        samples: generations that were compared in each way.
        equal: way -> generations that were equal to the bit.
        differences: one line for each that was not.
        causes: the likely causes; empty if there are none.
        model: its name and digest now.
        version: of this package.
    """

    rows: tuple[str, ...]
    left_out: int
    samples: int
    equal: Mapping[str, int]
    differences: tuple[str, ...]
    causes: tuple[str, ...]
    model: str
    version: str = VERSION

    @property
    def drawn(self) -> str:
        """The number of rows, in words."""
        return f"{len(self.rows)} row{'s' * (len(self.rows) != 1)}"

    def describe(self) -> str:
        """A line for people."""
        ways = "; ".join(f"{way}: {count} of {self.samples} equal" for way, count in self.equal.items())
        out = f"; {self.left_out} others failed, or a retry did them" if self.left_out else ""
        return f"{self.drawn} drawn at random{out}; {ways}"

    def save(self, storage: Storage) -> str:
        """Write the record of it into the state of the output, and return its key."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        key = f"{layout.AUDITS}/{stamp}-{uuid.uuid4().hex[:8]}.json"
        storage.put(key, seal(asdict(self)))
        return key


def config_of_run(state: RunState, model: str | None, **others: Any) -> RunConfig:
    """The configuration of the run, with a model.

    Raises:
        ConfigError: another version of this package reads the settings otherwise.
    """
    recorded, digest = _recorded_model(state)
    config = config_of(state.fingerprint, model=model or recorded, **others)
    given = fingerprint_fields(config)
    differ = [name for name, value in given.items() if state.fingerprint.get(name) != value]
    if differ:
        raise ConfigError(f"the run's settings {differ} cannot be read back. Use the version it was begun with.")
    check_model(config)
    return replace(config, engine=replace(config.engine, smoothing=smoothing_of(config, digest)))


def _recorded_model(state: RunState) -> tuple[str, str]:
    name, _, digest = state.fingerprint["model"].rpartition("@")
    return name, digest


def regenerate_rows(state: RunState, config: RunConfig, source: Source, storage: Storage, drawn: Drawn) -> Regeneration:
    """Generate the drawn rows, which the verification has collected, once more and compare; writes nothing.

    Raises:
        SourceError, WeightsError, ConfigError: the rows cannot be generated here.
    """
    job = resolve_job(config, source, storage, leading=state.columns)
    done = [one for one in drawn.rows if one.is_good]
    digest = resolved_model(config).digest(config.engine.smoothing)
    model = f"{config.model_name}@{digest}"
    if not done:
        return Regeneration(
            rows=(), left_out=len(drawn.rows), samples=0, equal=dict.fromkeys(WAYS, 0), differences=(), causes=(),
            model=model,
        )  # fmt: skip
    prefix = config.column_prefix
    published = pa.concat_tables([one.output for one in done])
    prepared = [prepare_table(one.source, one.unit, job) for one in done]
    engine = load_engine(job, config.num_threads)
    found = {
        WAYS[0]: _shuffled(job, engine, prepared),
        WAYS[1]: pa.concat_tables([_generated(job, engine, table) for table in prepared]),
    }
    differences: list[str] = []
    equal = {}
    for way, table in found.items():
        lines = _differences(published, table, prefix, way)
        differences += lines
        equal[way] = published.num_rows - len(lines)
    ids = dict.fromkeys(published[f"{prefix}row_id"].to_pylist())
    return Regeneration(
        rows=tuple(ids), left_out=len(drawn.rows) - len(done), samples=published.num_rows, equal=equal,
        differences=tuple(differences), model=model,
        causes=_causes(state, config, storage, digest) if differences else (),
    )  # fmt: skip


def _shuffled(job: Job, engine: EngineLike, prepared: Sequence[pa.Table]) -> pa.Table:
    """The rows generated at once, in another order."""
    order = np.random.default_rng().permutation(len(prepared))
    return _generated(job, engine, pa.concat_tables([prepared[number] for number in order]))


def _generated(job: Job, engine: EngineLike, table: pa.Table) -> pa.Table:
    unit = Unit(unit_id="regenerated", index=0, rows=Slice(file=0, first_row=0, num_rows=table.num_rows))
    return preview_table(job, engine, unit, table.combine_chunks())


def _differences(published: pa.Table, found: pa.Table, prefix: str, way: str) -> list[str]:
    """A line for each generation that is another one, or is missing because its row fails now."""
    names = [prefix + name for name in _COMPARED if prefix + name in published.column_names]
    keys = [f"{prefix}row_id", f"{prefix}sample_index"]
    found = found.cast(published.schema)
    places = {key: place for place, key in enumerate(zip(*(found[name].to_pylist() for name in keys), strict=True))}
    ours, theirs = (row_digests(table, names) for table in (published, found))
    size = len(ours) // max(1, published.num_rows)
    lines = []
    for row, key in enumerate(zip(*(published[name].to_pylist() for name in keys), strict=True)):
        place = places.get(key)
        if place is not None and ours[row * size : (row + 1) * size] == theirs[place * size : (place + 1) * size]:
            continue
        where = f"row {key[0]!r}" + (f", sample {key[1]}" if key[1] else "") + f", generated again {way}"
        if place is None:
            lines.append(f"{where}: it is missing, as the row fails now")
            continue
        before, now = (
            {name.removeprefix(prefix): table[name][at].as_py() for name in names}
            for table, at in ((published, row), (found, place))
        )
        lines.append(f"{where}: {_first_difference(before, now)}")
    return lines


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first token that is another one; else the first column."""
    for name, unit in (("token_ids", "token"), ("text", "character")):
        if name in before and before[name] != now[name]:
            old, new = list(before[name] or ()), list(now[name] or ())
            place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            was, there = (repr(own[place]) if place < len(own) else "the end" for own in (old, new))
            return f"{unit} {place} is {was} in the output and {there} now"
    name = next(name for name in before if before[name] != now[name] or name == "top_logprobs")
    return f"{name} is {str(before[name])[:60]} in the output and {str(now[name])[:60]} now"


def _causes(state: RunState, config: RunConfig, storage: Storage, digest: str) -> tuple[str, ...]:
    """Likely causes of differences, the surest first."""
    _, recorded = _recorded_model(state)
    if digest != recorded:
        resolved = resolved_model(config)
        same = resolved.files_digest == recorded.partition("+")[0]
        folders = " and ".join(map(str, filter(None, (resolved.folder, resolved.adapter))))
        what = "its smoothing is another one" if same else f"the files in {folders} are not those of the run"
        return (f"model: {what} (digest {digest}, of the run {recorded})",)
    used, has = read_usage(storage, state.begun), "GPU" if uses_gpu() else "CPU"
    had = used.unit if used.priced else has
    if had != has:
        dtype = ", and dtype auto is float32 on a CPU and bfloat16 on a GPU" if config.dtype == "auto" else ""
        return (f"kind of processor: the run had a {had}, this process has a {has}{dtype}",)
    versions = {session.version for session in load_sessions(storage)} - {VERSION, ""}
    if versions:
        return (f"version: of the run {sorted(versions)}, of this package {VERSION}",)
    causes = ["the output: its values were changed before they were committed, or its model had other bits then"]
    if config.engine.weight_dtype != "int8":
        causes.append(f"another kind of {had}, or of torch: sums of floats come in another order; int8 sums are exact")
    return tuple(causes)


@dataclass(frozen=True, kw_only=True)
class DrawnRow:
    """An input row, a unit of it alone, and the output rows (samples) that it has.

    Attributes:
        is_good: it did not fail, and no retry with other settings did it.
    """

    source: pa.Table
    unit: Unit
    output: pa.Table
    is_good: bool


class Drawn:
    """Input rows that are drawn by their places in the order of the output, and collected as it is read."""

    def __init__(self, places: Collection[int]) -> None:
        self.rows: list[DrawnRow] = []
        self._places, self._passed = places, 0

    def collect(self, planned: Unit, source_rows: pa.Table, table: pa.Table, prefix: str) -> None:
        """Pass a unit, and keep those of its rows that were drawn."""
        begin, self._passed = self._passed, self._passed + planned.num_rows
        starts = np.flatnonzero(table[f"{prefix}sample_index"].to_numpy() == 0)
        ends = [*starts[1:], table.num_rows]
        row = 0
        for piece in planned.slices:
            for inside in range(piece.num_rows):
                if begin + row in self._places and row < len(starts):
                    output = table.slice(starts[row], ends[row] - starts[row])
                    retried = output[f"{prefix}retry"].null_count < output.num_rows
                    self.rows.append(
                        DrawnRow(
                            source=source_rows.slice(row, 1),
                            unit=replace(
                                planned, rows=replace(piece, first_row=piece.first_row + inside, num_rows=1), more=()
                            ),
                            output=output,
                            is_good=not retried and output[f"{prefix}finish_reason"][0].as_py() != "error",
                        )
                    )
                row += 1


def drawn_rows(state: RunState, rows: int) -> Drawn:
    """Draw rows of an output; the verification collects them as it passes.

    Raises:
        ConfigError: fewer than one.
        OutputError: a run does not generate the rows of this output from an input.
    """
    if rows < 1:
        raise ConfigError(f"regenerate={rows}: at least 1. Ask for 200.")
    if state.derived is not None:
        raise OutputError(f"a filter made it of {state.derived.source}: regenerate rows of that output.")
    return Drawn(frozenset(random.SystemRandom().sample(range(state.rows), min(rows, state.rows))))

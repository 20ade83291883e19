"""``estimate``: extrapolates tokens, time and bytes of a run from a small sample, run on the model in this process."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from pipeline.commands.run_checks import on_this_cpu, sampled
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.prompts.model_files import ModelMemory, check_model, model_memory
from pipeline.sinks import FORMATS
from pipeline.types import Slice, Unit
from pipeline.worker.load_engine import EngineLoader, load_engine
from pipeline.worker.unit_worker import preview_table

_HOUR = 3600.0
_SIGMAS = 1.96
"""Standard errors to either side: 95% of a normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """An estimated total with its 95% confidence interval."""

    low: float
    expected: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float], population: int) -> Spread:
        """The total over ``population`` rows, from the values of a sample."""
        values = np.asarray(sample, float)
        count = len(values)
        error = values.std(ddof=1) / math.sqrt(count) if count > 1 else float(values.mean())
        # Finite population correction: if all rows were sampled, the total is known.
        error *= math.sqrt(max(0, population - count) / max(1, population - 1))
        mean = float(values.mean())
        low = max(0.0, mean - _SIGMAS * error)
        return cls(low=low * population, expected=mean * population, high=(mean + _SIGMAS * error) * population)

    def plus(self, value: float) -> Spread:
        """All three plus ``value``."""
        return Spread(low=self.low + value, expected=self.expected + value, high=self.high + value)

    def scaled(self, factor: float) -> Spread:
        """All three times ``factor``."""
        return Spread(low=self.low * factor, expected=self.expected * factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of a run, extrapolated from a sample.

    Attributes:
        rows: rows of the input.
        sampled_rows: rows generated for the sample, spread over the input.
        failed_rows: how many of these failed.
        prompt_tokens, completion_tokens: tokens of the whole run.
        output_bytes: size of the published files.
        load_seconds: time to load the model here.
        plan_seconds: time to plan the run here.
        actor_start_seconds: time from the start of an actor's process here to the end of its first forward.
        tokens_per_second: generated tokens of one engine on the sample, on this machine.
        engine_slots: sequences that an engine runs at once.
        seconds: number of actors -> time of the run, planning and the start of actors included, if each actor is as
            fast as this engine.
        reserved: number of actors -> seconds that they reserve of GPUs, or of CPUs where they reserve no GPU.
        unit: of the seconds: ``GPU`` or ``CPU``.
        price_per_hour: of one of these, if it was given.
        memory: the model's part of an actor's memory, in each dtype.
        scores: whether texts are scored. Completion tokens are those of the texts, or of the best choices.
    """

    rows: int
    sampled_rows: int
    failed_rows: int
    prompt_tokens: Spread
    completion_tokens: Spread
    output_bytes: Spread
    load_seconds: float
    tokens_per_second: float
    engine_slots: int
    seconds: dict[int, Spread]
    plan_seconds: float = 0.0
    actor_start_seconds: float = 0.0
    reserved: dict[int, Spread] = field(default_factory=dict)
    unit: str = "CPU"
    price_per_hour: float | None = None
    memory: ModelMemory | None = None
    scores: bool = False

    def describe(self) -> str:
        """A few lines for people."""
        done, tokens = ("scored", "Scored tokens:   ") if self.scores else ("generated", "Generated tokens:")
        lines = [
            f"ESTIMATE from {self.sampled_rows} of {self.rows} rows, spread over the input, {done} on this machine;",
            "ranges hold the sample's spread only (95%), no other differences of the run.",
            f"Prompt tokens:    {_show(self.prompt_tokens, _count)}",
            f"{tokens} {_show(self.completion_tokens, _count)}{', in the texts or best choices' * self.scores}",
            f"Output:           {_show(self.output_bytes, _bytes)}",
            f"One engine here:  {self.tokens_per_second:.0f} tokens/s, {self.load_seconds:.1f} s to load",
            f"Start-up here:    {self.plan_seconds:.1f} s to plan, {self.actor_start_seconds:.1f} s to start an actor; "
            "a session of Ray, if none runs, comes on top",
        ]
        for actors, seconds in self.seconds.items():
            name = f"{actors} actor{'s' if actors > 1 else ''}:"
            lines += [f"Time, {name:<11} {_show(seconds, _time)}, start-up included",
                      f"Cost, {name:<11} {self._cost(self.reserved[actors])}"]  # fmt: skip
        if len(self.seconds) > 1:
            lines.append(
                "Several actors are as fast as that only where each has such a machine (or device) of its own."
            )
        if not self.scores and self.sampled_rows < self.engine_slots and self.sampled_rows < self.rows:
            lines.append(
                f"The sample filled {self.sampled_rows} of the engine's {self.engine_slots} slots: a full engine "
                "generates more tokens/s. Sample more rows to see."
            )
        if self.memory is not None:
            lines += [line[0].upper() + line[1:] for line in self.memory.lines]
            lines += [] if self.memory.shortfall is None else [f"Warning: {self.memory.shortfall}"]
        if self.failed_rows:
            lines.append(f"{self.failed_rows} of the sampled rows failed. See --validate for reasons.")
        return "\n".join(lines)

    def _cost(self, reserved: Spread) -> str:
        seconds = f"{_show(reserved, _figure)} {self.unit}-seconds reserved by actors"
        if self.price_per_hour is None:
            return f"{seconds}; set price_per_hour for a price"
        price = reserved.scaled(self.price_per_hour / _HOUR)
        return f"{_show(price, _figure)} at {self.price_per_hour:g} per {self.unit}-hour; {seconds}"


def estimate(config: RunConfig, rows: int = 64, load: EngineLoader = load_engine) -> Estimate:
    """Generate for a few rows in this process and extrapolate. Uses no Ray and writes no output.

    Args:
        config: the run's configuration.
        rows: sample size; evenly spread over the input, the same rows each time.
        load: makes the engine.

    Raises:
        ConfigError, SourceError, WeightsError: as :func:`pipeline.run` would.
    """
    began = time.monotonic()
    with sampled(config, rows) as (job, total, table):
        planned = time.monotonic()
        _start_process()
        begin = time.monotonic()
        engine = load(job, config.num_threads)
        ready = time.monotonic()
        unit = Unit(unit_id="sample", index=0, rows=Slice(file=0, first_row=0, num_rows=table.num_rows))
        preview_table(job, engine, unit, table.slice(0, 1))  # the one-off cost of the first forward does not count
        warm = time.monotonic()
        out = preview_table(job, engine, unit, table)
        seconds = time.monotonic() - warm
        found = _extrapolated(job, total, table.num_rows, out, load_seconds=ready - begin, seconds=seconds)
    memory = model_memory(config, check_model(config).config, on_cpu=on_this_cpu(config))
    return replace(_with_start_up(found, config, planned - began, warm - planned), memory=memory)


def _start_process() -> None:
    """Start a process as an actor's is started, to see how long that takes, and end it."""
    subprocess.run([sys.executable, "-c", "import pipeline.cluster.generate_actor"], check=True)


def _with_start_up(found: Estimate, config: RunConfig, plan_seconds: float, actor_seconds: float) -> Estimate:
    """Add the start-up to an estimate, and the seconds that actors reserve. Its ``seconds`` hold neither."""
    run = next(iter(config.runs_of_pools().values()))
    gpus = (0.0 if on_this_cpu(config) else 1.0) if run.gpus_per_actor == "auto" else run.gpus_per_actor
    each = gpus or (1.0 if run.cpus_per_actor == "auto" else run.cpus_per_actor)
    return replace(
        found,
        plan_seconds=plan_seconds,
        actor_start_seconds=actor_seconds,
        seconds={n: work.plus(plan_seconds + actor_seconds) for n, work in found.seconds.items()},
        reserved={n: work.plus(actor_seconds).scaled(n * each) for n, work in found.seconds.items()},
        unit="GPU" if gpus else "CPU",
        price_per_hour=config.price_per_hour,
    )


def _extrapolated(
    job: Job, total: int, sampled: int, out: pa.Table, *, load_seconds: float, seconds: float
) -> Estimate:  # fmt: skip
    prefix = job.config.column_prefix
    starts = out[f"{prefix}sample_index"].to_numpy() == 0
    row = np.cumsum(starts) - 1

    def per_row(name: str) -> np.ndarray:
        values = out[prefix + name].fill_null(0).to_numpy()
        return np.bincount(row, values, minlength=sampled)

    completion = per_row("completion_tokens")
    # The prompt is prefilled once for each sample.
    prompt = per_row("prompt_tokens")
    rate = float(completion.sum()) / seconds if seconds > 0 else 0.0
    tokens = Spread.of(completion.tolist(), total)
    counts = sorted({1, job.config.most_actors, 2 * job.config.most_actors})
    return Estimate(
        rows=total,
        sampled_rows=sampled,
        failed_rows=int((out[f"{prefix}finish_reason"].to_numpy() == "error").sum()),
        prompt_tokens=Spread.of(prompt.tolist(), total),
        completion_tokens=tokens,
        output_bytes=tokens.scaled(_written(job, out) / max(1.0, float(completion.sum())))
        if completion.any()
        else Spread.of([_written(job, out) / sampled] * sampled, total),
        load_seconds=load_seconds,
        tokens_per_second=rate,
        engine_slots=job.config.engine.max_num_seqs,
        scores=job.config.task is not None,
        seconds={n: tokens.scaled(1 / (rate * n) if rate > 0 else 0.0) for n in counts},
    )


def _written(job: Job, out: pa.Table) -> int:
    """Bytes of the rows in the run's format."""
    file = io.BytesIO()
    writer = FORMATS[job.config.output_format].open(file, job.schema)
    writer.write(out)
    writer.close()
    return file.tell()


def _show(spread: Spread, write: object) -> str:
    assert callable(write)
    return f"{write(spread.expected)} ({write(spread.low)} to {write(spread.high)})"


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def _figure(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else _count(value)


def _bytes(value: float) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.3g} {unit}"
    return f"{value:.0f} B"


def _time(value: float) -> str:
    if value < 120:
        return f"{value:.0f} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"

"""The result of a chain: a summary for each stage, and access to the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.codec import redact
from pipeline.commands.failure_limit import describe_failures
from pipeline.commands.filter_result import FilterResult
from pipeline.commands.start_up import StartUp
from pipeline.commands.summary import RunResult, RunSummary
from pipeline.cost import ResourceSeconds, describe_cost

__all__ = ["ChainResult", "ChainSummary"]


@dataclass(frozen=True, kw_only=True)
class ChainSummary:
    """The summary of a chain.

    Attributes:
        output: the folder or URL above those of the stages.
        stages: name of each stage that generates -> its summary, in order.
        filters: name of each filter after them -> its result, in order.
        seconds: wall-clock time of this call's generation.
        start_up: what the start of this call's actors was made of.
        used: what this call's actors used.
        price_per_hour: of one accelerator or CPU, if it was given.
    """

    output: str = field(repr=False)
    stages: Mapping[str, RunSummary]
    filters: Mapping[str, FilterResult]
    seconds: float
    start_up: StartUp = field(default_factory=StartUp)
    used: ResourceSeconds = field(default_factory=ResourceSeconds)
    price_per_hour: float | None = None

    @property
    def all_failed(self) -> bool:
        """Whether the first stage has rows and all failed, or a later one."""
        return any(own.total.all_failed for own in self.stages.values())

    def describe(self) -> str:
        """A few lines for people: of each stage, how many rows came, failed and were generated."""
        wide = max(len(name) for name in (*self.stages, *self.filters))
        lines = [f"Output: {redact(self.output)}, a folder for each stage"]
        for name, own in self.stages.items():
            total = own.total
            lines.append(
                f"{name:{wide}}  {total.rows} rows in, {total.failed_rows} failed, {total.samples} generations "
                f"({own.session.rows} rows in this run); {total.completion_tokens} tokens, "
                f"{total.tokens_per_forward:.2f} per forward"
            )
            if total.failed_rows:
                reasons = describe_failures(total.failures)
                lines.append(f"{'':{wide}}  failed by reason: {reasons}; they stay in this stage's dead letters")
        for name, result in self.filters.items():
            dropped = ", ".join(f"{reason} {count}" for reason, count in result.dropped.items())
            lines.append(f"{name:{wide}}  {result.rows} rows in, {result.kept} kept; dropped: {dropped or 'none'}")
        tokens = sum(own.session.completion_tokens for own in self.stages.values())
        if any(own.session.units for own in self.stages.values()):
            lines.append(f"This run: {tokens} tokens in {self.seconds:.1f} s")
            if self.used.priced:
                lines.append(f"Cost of this run: {describe_cost(self.used, tokens, self.price_per_hour)}")
        else:
            lines.append("This run: nothing was left to do")
        globs = [*(own.glob for own in self.stages.values()), *(own.glob for own in self.filters.values())]
        lines.append(f"Files of the last stage: {redact(globs[-1])}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ChainResult:
    """A finished chain. ``result["judge"]`` is the result of a stage, as :func:`pipeline.run` (or ``filter``) gives it.

    Attributes:
        summary: counts of each stage.
        storage_options: keyword arguments of the outputs' file system.
    """

    summary: ChainSummary
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, stage: str) -> RunResult | FilterResult:
        if stage in self.summary.filters:
            return self.summary.filters[stage]
        return RunResult(summary=self.summary.stages[stage], storage_options=self.storage_options)

    @property
    def last(self) -> RunResult | FilterResult:
        """The result of the last stage."""
        return self[[*self.summary.stages, *self.summary.filters][-1]]

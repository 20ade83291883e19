"""The result of a chain: a summary for each stage, and access to the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.codec import redact
from pipeline.commands.filter import FilterResult
from pipeline.commands.summary import Fact, RunResult, RunSummary, StartUp, SummaryTable
from pipeline.progress.figures import describe_cost
from pipeline.progress.snapshot import ResourceSeconds


@dataclass(frozen=True, kw_only=True)
class ChainSummary:
    """The summary of a chain.

    Attributes:
        output: the folder or URL above those of the stages.
        stages: name of each stage that generates -> its summary, in order.
        filters: name of each filter after them -> its result, in order.
        seconds: wall-clock time of this call's generation.
        start_up: parts of the start of this call's actors.
        used: resources of this call's actors.
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
        """Whether a stage has rows and all of them failed."""
        return any(own.total.all_failed for own in self.stages.values())

    def table(
        self, of_stages: Mapping[str, tuple[Fact, ...]] | None = None, commands: tuple[Fact, ...] = ()
    ) -> SummaryTable:  # fmt: skip
        """The text at the end: about the chain, then about each stage."""
        facts = {"Output": f"{redact(self.output)}, a folder for each stage", "This run": "nothing was left to do"}
        if any(own.session.units for own in self.stages.values()):
            tokens = sum(own.session.completion_tokens for own in self.stages.values())
            generating = max(own.generating_seconds for own in self.stages.values())
            rate = f": {tokens / generating:.0f} tokens/s" if generating > 0 else ""
            facts["This run"] = f"{tokens} tokens in {self.seconds:.1f} s, {generating:.1f} s of it generating{rate}"
            if self.used.priced:
                facts["Cost of this run"] = describe_cost(self.used, tokens, self.price_per_hour)
        elif any(own.added for own in self.filters.values()):
            facts["This run"] = "nothing was left to generate"
        if self.start_up.actors:
            label, _, value = self.start_up.describe().partition(": ")
            facts[label] = value
        next_ones = of_stages or {}
        outputs: Mapping[str, RunSummary | FilterResult] = {**self.stages, **self.filters}
        return SummaryTable(
            facts=tuple(Fact(label=label, value=value) for label, value in facts.items()),
            sections=tuple(own.section(f"Stage {name}", next_ones.get(name, ())) for name, own in outputs.items()),
            commands=commands,
        )

    def describe(self) -> str:
        """A few lines for people: the chain, then rows, failures and files of each stage."""
        return self.table().plain()


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

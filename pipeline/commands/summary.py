"""The result of a run: its summary and access to its output."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

from pipeline.codec import redact
from pipeline.commands.read import read
from pipeline.fingerprint import retry_advice
from pipeline.progress.figures import describe_cost
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.reporting.facts import describe_drafts
from pipeline.settings.parsing import describe_unparsed
from pipeline.sinks import FORMATS
from pipeline.storage.urls import join
from pipeline.types import Totals, Unread

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from pipeline.cluster.ray_dataset import Dataset
    from pipeline.commands.read import OutputTable


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A label and its value, one line."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class SummaryTable:
    """The lines at the end of a run.

    Attributes:
        title: of a section; empty for the whole.
        facts: in the order of the table.
        failures: a line for each cause: number of rows, cause, remedy and example; the most frequent first.
        advice: a line about failed rows; empty without them.
        commands: for the next step, as typed in a POSIX shell; the label names their purpose.
        sections: of a chain, one for each of its stages. They come after the facts.
    """

    title: str = ""
    facts: tuple[Fact, ...] = ()
    failures: tuple[str, ...] = ()
    advice: str = ""
    commands: tuple[Fact, ...] = ()
    sections: tuple[SummaryTable, ...] = ()

    def plain(self) -> str:
        """Lines of text, each beginning with its label; those of a section are indented."""
        return "\n".join(f"{label} {value}" if value else label for label, value, _ in self._lines())

    def write(self, file: TextIO) -> None:
        """Write it: with colours and columns on a terminal, else as :meth:`plain`."""
        if not file.isatty():
            print(self.plain(), file=file, flush=True)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(file=file, highlight=False)
        grid = Table.grid(padding=(0, 2))
        for label, value, style in self._lines():
            if not style:
                grid.add_row(Text(label, style="dim", overflow="fold"), Text(value, overflow="fold"))
                continue
            console.print(grid)
            grid = Table.grid(padding=(0, 2))
            # Soft wrapped: a terminal gives a command back in one piece when it is copied.
            console.print(Text(label, style="dim" if value else style, overflow="fold").append(
                f" {value}" if value else "", style="not dim cyan"), soft_wrap=bool(value))  # fmt: skip
        console.print(grid)

    def _lines(self, indent: str = "") -> Iterator[tuple[str, str, str]]:
        """Label, value and style of each line; facts have no style, and stand in columns."""
        for fact in self.facts:
            yield f"{indent}{fact.label}:", fact.value, ""
        for section in self.sections:
            yield f"{indent}{section.title}:", "", "bold"
            yield from section._lines(indent + "  ")
        if self.failures:
            yield f"{indent}Failed rows by cause:", "", "red"
        for line in self.failures:
            yield f"{indent}  {line}", "", "red"
        if self.advice:
            yield f"{indent}{self.advice}", "", "dim"
        for command in self.commands:
            yield f"{indent}To {command.label}:", command.value, "cyan"


PHASES: Mapping[str, tuple[str, ...]] = {
    "scheduling": ("scheduled",),
    "fetch": ("model fetched",),
    "load": ("torch imported", "model loaded"),
    "compile": ("kernels ready", "draft kernels ready"),
    "measure": ("step costs known",),
}
"""Phase of a start -> the stages (:mod:`pipeline.stages`) that it is made of, in their order.

Scheduling: from the request for an actor to its process, waiting for a node included. Fetch: the download of the model.
Load: torch and the weights. Compile: the first forwards. Measure: the cost of forwards.
"""


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """The start of the actors.

    Attributes:
        actors: that became ready.
        median, worst: seconds of each phase over these actors, and of all phases together under "all".
    """

    actors: int = 0
    median: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, starts: Sequence[Mapping[str, float]]) -> StartUp:
        """From the seconds of the stages of each actor."""
        if not starts:
            return cls()
        seconds = {
            phase: [sum(taken.get(name, 0.0) for name in stages) for taken in starts]
            for phase, stages in PHASES.items()
        }
        seconds["all"] = [sum(each) for each in zip(*seconds.values(), strict=True)]
        return cls(
            actors=len(starts),
            median={phase: statistics.median(each) for phase, each in seconds.items()},
            worst={phase: max(each) for phase, each in seconds.items()},
        )

    def describe(self) -> str:
        """One line for people: the median and, of several actors, the worst; empty if none started."""
        if not self.actors:
            return ""

        def show(phase: str) -> str:
            worst = f" (worst {self.worst[phase]:.1f})" if self.actors > 1 else ""
            return f"{self.median[phase]:.1f} s{worst}"

        parts = ", ".join(f"{phase} {show(phase)}" for phase in PHASES)
        return f"Start of {self.actors} actor{'s' * (self.actors > 1)}: {show('all')}: {parts}"


_WHERE = "Failed rows, whole: pipeline.read(output, table='dead_letters')."


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The summary of a run.

    Attributes:
        output: the folder or URL as it was given, credentials included; :meth:`describe` masks them.
        total: totals over the whole output.
        session: totals over the rows that this call generated; all zero if everything had been done before.
        seconds: wall-clock time of this call's generation, start of the actors included.
        generating_seconds: the same without the start: since the first engine was ready.
        publications: folders of the output that hold published parts.
        format: of the published parts.
        unread: files below the input that are not read.
        start_up: parts of the start of this call's actors.
        used: resources of this call's actors, from the start of their processes until they were given back.
        used_by_all: resources of the actors of all calls on this output, as far as recorded.
        gain: how many times faster the actors decoded than autoregressive decoding would at this load; None if unknown.
        price_per_hour: of one accelerator or CPU, if it was given.
        retries: how each retry of failed rows differed from the run, and its rows in the output.
        model_params: which sampling parameters of the model's ``generation_config.json`` were applied, as text.
        scheduled: whether scheduled runs keep the output.
        corrected_rows: whether the input of this call was corrected rows alone.
    """

    output: str = field(repr=False)
    total: Totals
    session: Totals
    seconds: float
    generating_seconds: float
    publications: tuple[str, ...]
    format: str = "parquet"
    unread: Unread = field(default_factory=Unread)
    start_up: StartUp = field(default_factory=StartUp)
    used: ResourceSeconds = field(default_factory=ResourceSeconds)
    used_by_all: ResourceSeconds = field(default_factory=ResourceSeconds)
    gain: float | None = None
    price_per_hour: float | None = None
    retries: tuple[str, ...] = ()
    model_params: str = ""
    scheduled: bool = False
    corrected_rows: bool = False

    def following(self, earlier: RunSummary) -> RunSummary:
        """Add the rows and seconds of ``earlier``, a summary of the same call."""
        return replace(
            self,
            session=earlier.session.merged_with(self.session),
            seconds=earlier.seconds + self.seconds,
            generating_seconds=earlier.generating_seconds + self.generating_seconds,
        )

    @property
    def seconds_per_million_tokens(self) -> float | None:
        """Accelerator-seconds (CPU-seconds where actors reserved none) per million tokens that this call committed."""
        return self.used.per_million(self.session.completion_tokens)

    @property
    def cost(self) -> float | None:
        """Price of this call's accelerators, in the currency of ``price_per_hour``; None if that was not given."""
        return None if self.price_per_hour is None else self.used.cost(self.price_per_hour)

    @property
    def cost_of_all(self) -> float | None:
        """:attr:`cost` over all calls."""
        return None if self.price_per_hour is None else self.used_by_all.cost(self.price_per_hour)

    @property
    def glob(self) -> str:
        """The pattern that matches every published file and nothing else, for any reader of plain files."""
        return join(self.output, f"data-*/*{FORMATS[self.format].suffix}")

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of this call, start of the actors left out."""
        return self.session.completion_tokens / self.generating_seconds if self.generating_seconds > 0 else 0.0

    @property
    def rows_per_second(self) -> float:
        """Input rows per second of this call, start of the actors left out."""
        return self.session.rows / self.generating_seconds if self.generating_seconds > 0 else 0.0

    def table(self, commands: tuple[Fact, ...] = ()) -> SummaryTable:
        """The text at the end of a run. ``commands``: suggestions to type next."""
        total, session = self.total, self.session
        facts = {
            "Output": f"{redact(self.output)} ({', '.join(self.publications) or 'nothing published'})",
            **self._counts(),
        }
        if session.blank_prompts or session.identical_prompts:
            facts["Prompts"] = (
                f"{session.blank_prompts} blank; {session.identical_prompts} identical to an earlier one of the same "
                "unit (of this run's rows)"
            )
        if self.model_params:
            facts["Model"] = self.model_params
        if total.unparsed:
            facts["Not parsed"] = describe_unparsed(total.unparsed, total.samples)
        if session.units:
            facts["This run"] = (
                f"{session.rows} row{'s' * (session.rows != 1)} in {self.seconds:.1f} s, "
                f"{self.generating_seconds:.1f} s of it generating: {self.tokens_per_second:.0f} tokens/s, "
                f"{self.rows_per_second:.3g} rows/s"
                + (f"; {self.gain:.2f} times autoregressive decoding at this load" if self.gain else "")
            )
            if self.used.priced:
                facts["Cost of this run"] = describe_cost(self.used, session.completion_tokens, self.price_per_hour)
        else:
            facts["This run"] = "nothing was left to do"
        if self.used_by_all.priced > self.used.priced:  # calls before this one
            tokens = total.completion_tokens
            facts["Cost of all runs"] = describe_cost(self.used_by_all, tokens, self.price_per_hour)
        if self.start_up.actors:
            label, _, value = self.start_up.describe().partition(": ")
            facts[label] = value
        if self.publications:
            facts["Files"] = f"{redact(self.glob)} (a glob for Polars, DuckDB, Spark, datasets)"
        return self._table(facts, commands)

    def section(self, title: str, commands: tuple[Fact, ...] = ()) -> SummaryTable:
        """The text about a stage of a chain, without time and cost."""
        facts = self._counts()
        if self.session.rows < self.total.rows:
            facts["This run"] = (
                f"{self.session.rows} row{'s' * (self.session.rows != 1)}"
                if self.session.units
                else "nothing was left to do"
            )
        facts["Files"] = redact(self.glob) if self.publications else "nothing published"
        return replace(self._table(facts, commands), title=title)

    def _counts(self) -> dict[str, str]:
        total = self.total
        drafts = describe_drafts(total.drafts, total.completion_tokens)
        decoded = (
            f"generated; {total.tokens_per_forward:.2f} per forward ({total.decode_forwards} forwards), prefix "
            f"cacheability (p_cache) {total.prefix_cacheability:.2f} ({total.rows_forwarded} token rows)"
        )
        if total.are_scored:
            decoded = "in the texts or best choices"
        return {
            "Rows": f"{total.rows}, {total.rows - total.failed_rows} ok, {total.failed_rows} failed; "
            f"{total.samples} generation{'s' * (total.samples != 1)}",
            "Tokens": f"{total.prompt_tokens} prompt, {total.completion_tokens} {decoded}",
            **({"Drafts": drafts} if drafts else {}),
            **({"Not read": self.unread.describe()} if self.unread.count else {}),
            **({"Retries": redact("; ".join(self.retries))} if self.retries else {}),
        }

    def _table(self, facts: Mapping[str, str], commands: tuple[Fact, ...]) -> SummaryTable:
        total = self.total
        return SummaryTable(
            facts=tuple(Fact(label=label, value=value) for label, value in facts.items()),
            failures=tuple(redact(own.line) for own in total.failed_by_cause),
            advice=f"{_WHERE} {retry_advice(scheduled=self.scheduled)}" if total.failed_rows else "",
            commands=commands,
        )

    def describe(self) -> str:
        """A few lines for people."""
        return self.table().plain()


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run and its output, read from the published files when it is used.

    Iterating gives one mapping for each row, in input order, a bounded number of rows in memory at a time.

    Attributes:
        summary: counts and rates.
        storage_options: keyword arguments of the output's file system.
    """

    summary: RunSummary
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> OutputTable:
        """The published rows; :func:`pipeline.read` of the output."""
        return read(self.summary.output, storage_options=self.storage_options)

    def to_arrow(self) -> pyarrow.Table:
        """The published rows as a table in memory, with exactly the Arrow types of the input's columns."""
        return self.rows.to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """The published rows as a pandas frame."""
        return self.rows.to_pandas()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @property
    def dataset(self) -> Dataset:
        """The published rows as a lazy Ray dataset, in the running Ray session.

        Raises:
            ResourceError: no session runs; reading starts none.
        """
        return self.rows.dataset

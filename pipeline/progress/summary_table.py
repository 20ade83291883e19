"""The summary of a run, for people: facts, failures with an example each, and the commands that come next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO


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
        facts: in the order in which they are shown.
        failures: a line for each cause: number of rows, cause, remedy and example; the most frequent first.
        advice: a line about failed rows; empty without them.
        commands: for the next step, as typed in a POSIX shell; the label says what for.
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

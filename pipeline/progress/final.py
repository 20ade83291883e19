"""The end of a run, for people: facts, failures with an example each, and the commands that come next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Fact", "Failed", "FinalTable"]

_GAP = 2
_LEAST_VALUE = 24
"""Columns of a terminal that a value needs beside its label."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """``label``: what it is; ``value``: one line."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The failed rows of one cause, in one line: their number, the cause, the remedy and an example."""

    cause: str


@dataclass(frozen=True, kw_only=True)
class FinalTable:
    """What a run says at its end.

    Attributes:
        title: of a section; empty for the whole.
        facts: in the order in which they are shown.
        failures: the most frequent first.
        advice: a line about failed rows; empty without them.
        commands: what may be typed next; the label says what for. As typed in a POSIX shell.
        sections: of a chain, one for each of its stages. They come between the facts and what follows these.
    """

    title: str = ""
    facts: tuple[Fact, ...] = ()
    failures: tuple[Failed, ...] = ()
    advice: str = ""
    commands: tuple[Fact, ...] = ()
    sections: tuple[FinalTable, ...] = ()

    def plain(self) -> str:
        """Lines of text, each beginning with its label; those of a section are indented."""
        lines = [f"{fact.label}: {fact.value}" for fact in self.facts]
        for section in self.sections:
            lines += [f"{section.title}:", textwrap.indent(section.plain(), "  ")]
        if self.failures:
            lines.append("Failed rows by cause:")
            lines += [f"  {one.cause}" for one in self.failures]
        lines += [self.advice] if self.advice else []
        lines += [f"To {command.label}: {command.value}" for command in self.commands]
        return "\n".join(lines)

    def write(self, file: TextIO) -> None:
        """Write it: with colours and columns on a terminal, else as :meth:`plain`."""
        if not file.isatty():
            print(self.plain(), file=file, flush=True)
            return
        from rich.console import Console

        self._write(Console(file=file, highlight=False))

    def _write(self, console: Console) -> None:
        from rich.text import Text

        if self.title:
            console.print(Text(self.title, style="bold"))
        self._write_facts(console, self.facts, ())
        for section in self.sections:
            section._write(console)
        self._write_facts(console, (), self.failures)
        if self.advice:
            console.print(Text(self.advice, style="dim"))
        for command in self.commands:
            # Soft wrapped: a terminal gives it back in one piece when it is copied.
            console.print(Text(f"To {command.label}: ", style="dim").append(command.value, style="not dim cyan"),
                          soft_wrap=True)  # fmt: skip

    def _write_facts(self, console: Console, facts: Sequence[Fact], failures: Sequence[Failed]) -> None:
        """Labels in one column and values in another; below each other where a value would have no room."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        rows = [(Text(fact.label, style="dim"), Text(fact.value)) for fact in facts]
        rows += [(Text("Failed", style="dim"), Text(one.cause, style="red")) for one in failures]
        labels = max((label.cell_len for label, _ in rows), default=0)
        if labels + _GAP + _LEAST_VALUE > console.width:
            for label, value in rows:
                console.print(label)
                console.print(Padding(value, (0, 0, 0, _GAP)), overflow="fold")
            return
        grid = Table.grid(padding=(0, _GAP))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in rows:
            grid.add_row(label, value)
        if rows:
            console.print(grid)

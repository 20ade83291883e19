"""The end of a run, for people: facts, failures with an example each, and the commands that come next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

__all__ = ["Fact", "Failed", "FinalTable"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """``label``: what it is; ``value``: one line."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Failed rows of one error class.

    Attributes:
        error_class: its name.
        rows: how many.
        example: the id and the message of one of them, cut.
    """

    error_class: str
    rows: int
    example: str


@dataclass(frozen=True, kw_only=True)
class FinalTable:
    """What a run says at its end.

    Attributes:
        facts: in the order in which they are shown.
        failures: the most frequent first.
        advice: a line about failed rows; empty without them.
        commands: what may be typed next; the label says what for. As typed in a POSIX shell.
    """

    facts: tuple[Fact, ...]
    failures: tuple[Failed, ...] = ()
    advice: str = ""
    commands: tuple[Fact, ...] = ()

    def plain(self) -> str:
        """Lines of text, each beginning with its label."""
        lines = [f"{fact.label}: {fact.value}" for fact in self.facts]
        if self.failures:
            lines.append(f"Failed by reason: {', '.join(f'{one.error_class} {one.rows}' for one in self.failures)}")
            lines += [f"  {one.error_class}, for example: {one.example}" for one in self.failures if one.example]
        lines += [self.advice] if self.advice else []
        lines += [f"To {command.label}: {command.value}" for command in self.commands]
        return "\n".join(lines)

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
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for fact in self.facts:
            grid.add_row(fact.label, Text(fact.value))
        for one in self.failures:
            grid.add_row(
                "Failed", Text(f"{one.rows} {one.error_class}", style="red").append(f" {one.example}", style="not red")
            )
        console.print(grid)
        if self.advice:
            console.print(Text(self.advice, style="dim"))
        for command in self.commands:
            # Soft wrapped: a terminal gives it back in one piece when it is copied.
            console.print(Text(f"To {command.label}: ", style="dim").append(command.value, style="not dim cyan"),
                          soft_wrap=True)  # fmt: skip

"""What a task is: how a row becomes a prompt, and what counts as its answer. A task is one module of ``tasks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.errors import ConfigError
from pipeline.settings.template import PromptTemplate

__all__ = ["Row", "Task", "Verdict"]

Row = Mapping[str, Any]
"""The cells of a data set's row, by column."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was answered.

    Attributes:
        outcome: "correct", "wrong", "no answer" (none was found in the text), or "program" where a program has to run
            first.
        answer: what was found, as text.
        expected: what the data set has.
        program: to be run, of a task with code.
    """

    outcome: Literal["correct", "wrong", "no answer", "program"]
    answer: str | None = None
    expected: str | None = None
    program: str | None = None

    @classmethod
    def of(cls, answer: str | None, expected: str | None, correct: bool) -> Verdict:
        """Of an answer that was found, or not."""
        outcome: Literal["correct", "wrong", "no answer"] = "correct" if correct else "wrong"
        return cls(outcome="no answer" if answer is None else outcome, answer=answer, expected=expected)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of question.

    Attributes:
        name: as it is called on the command line.
        about: a line for ``--help``.
        columns: what a row has to have, under the names of the public data set.
        question: Jinja template of a question, up to where the answer begins.
        solution: Jinja template of the answer of an example, as it should be written.
        instruction: text in front of everything.
        examples: rows in the same layout, in our own words, for few-shot prompts.
        shots: how many of them stand in front of a question; in brackets where that number is from.
        separator: between examples.
        max_tokens, temperature, stop: of a generation.
        judge: verdict on the text that was generated for a row.
        group: name of the part of the data set that a row belongs to (a subject, a level), if there are parts.
        runs_code: whether a verdict takes running what the model wrote.
    """

    name: str
    about: str
    columns: tuple[str, ...]
    question: str
    solution: str
    judge: Callable[[Row, str], Verdict]
    instruction: str = ""
    examples: Sequence[Row] = ()
    shots: int = 0
    separator: str = "\n\n"
    max_tokens: int = 256
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    group: Callable[[Row], str] | None = field(default=None)
    runs_code: bool = False

    @property
    def asked_columns(self) -> tuple[str, ...]:
        """The columns that a question is made of."""
        template = PromptTemplate(self.question)
        return self.columns if template.takes_whole_row else tuple(n for n in self.columns if n in template.names)

    def prompt_template(self, shots: int | None = None, examples: Sequence[Row] | None = None) -> str:
        """The Jinja template of the whole prompt over a row's columns.

        Args:
            shots: in place of the task's own number.
            examples: in place of the task's own, in the data set's layout.

        Raises:
            ConfigError: there are fewer examples than shots, or one of them has not the task's columns.
        """
        rows = self.examples if examples is None else examples
        count = self.shots if shots is None else shots
        if count > len(rows) or count < 0:
            raise ConfigError(
                f"shots={count}: task {self.name!r} has {len(rows)} examples. Lower it, or name a file of examples in "
                "the layout of the data set."
            )
        question, solution = PromptTemplate(self.question), PromptTemplate(self.solution)
        text = self.instruction
        for number, row in enumerate(rows[:count]):
            try:
                text += question.render(row) + solution.render(row) + self.separator
            except Exception as error:  # whatever an expression of the template raises
                raise ConfigError(
                    f"examples[{number}] of task {self.name!r}: {type(error).__name__}: {error}. It needs the columns "
                    f"{list(self.columns)}."
                ) from error
        return _literal(text) + self.question


def _literal(text: str) -> str:
    """A template that renders as this very text."""
    return f"{{{{ {text!a} }}}}" if text else ""

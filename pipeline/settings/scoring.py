"""The task of a run that scores: the scored texts, and the output columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from pipeline.codec import RequestError, explain
from pipeline.errors import ConfigError
from pipeline.settings.values import require

MOST_CHOICES = 4096
"""Choices of a row: each becomes a request."""
_TOKENS = 16
"""Expected work of a choice or continuation, in generated tokens; sizes units."""

LABEL_PROBABILITIES = pa.field(
    "label_probabilities",
    pa.list_(
        pa.struct(
            [
                pa.field("label", pa.string()),
                pa.field("probability", pa.float64()),
                pa.field("logprob", pa.float64()),
                pa.field("tokens", pa.int32()),
            ]
        )
    ),
)
"""One entry for each choice, in their order; ``probability``: softmax over the ``logprob`` of the choices, in nats."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The task of a run that reads log-probabilities of given texts after each prompt, and generates nothing.

    Set one of ``choices``, ``choices_column`` and ``continuation_column``. A text is scored where ``generate`` would
    begin its output: in a chat, after the beginning of the assistant's turn. It is tokenised separately from the
    prompt, so it has to include its leading space.

    Attributes:
        choices: texts to choose from, for all rows.
        choices_column: column of each row's own choices: lists of texts.
        continuation_column: column of each row's one text.
        with_end: put the end-of-sequence token after each text. Without it ``"1"`` is at least as probable as
            ``"10"``, which begins with it.

    Raises:
        ConfigError: none or several of the three are set, or two choices are equal.
    """

    choices: Sequence[str] = ()
    choices_column: str | None = None
    continuation_column: str | None = None
    with_end: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("choices_column", "continuation_column"):
            value = getattr(self, name)
            fine = value is None or (isinstance(value, str) and value != "")
            require(fine, f"task.{name}", value, "the name of a column", "Quote it, or leave it out.")
        require(isinstance(self.with_end, bool), "task.with_end", self.with_end, "true or false", "Write one of these.")
        try:
            absent = self.choices is None or (isinstance(self.choices, (list, tuple)) and not self.choices)
            object.__setattr__(self, "choices", () if absent else checked_choices("task.choices", self.choices))
        except RequestError as error:
            raise ConfigError(str(error)) from error
        names = ("choices", "choices_column", "continuation_column")
        given = [name for name in names if getattr(self, name)]
        rule = f"exactly one of {', '.join(names)}"
        require(len(given) == 1, "task", ", ".join(given) or None, rule, "Give one of these.")

    @property
    def column(self) -> str | None:
        """The input column that the texts come from."""
        return self.choices_column or self.continuation_column

    @property
    def expected_tokens(self) -> int:
        """Work of a row in generated tokens, roughly."""
        return _TOKENS * max(4, len(self.choices))

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON types."""
        plain = asdict(self) | {"choices": list(self.choices)}
        return {name: value for name, value in plain.items() if value}


def score_columns(task: Score | None, *, label_probabilities: bool) -> list[pa.Field]:
    """The output columns that a run with this task and setting has for scores."""
    if task is None:
        return [LABEL_PROBABILITIES] if label_probabilities else []
    sums = [pa.field("logprob", pa.float64()), pa.field("mean_logprob", pa.float64())]
    if task.continuation_column is not None:
        return sums
    return [pa.field("label", pa.string()), *sums, LABEL_PROBABILITIES]


def task_of(given: Any) -> Score | None:
    """The task of a run from a :class:`Score` or a mapping of its fields.

    Raises:
        ConfigError: it is neither, or has a bad field.
    """
    if given is None or isinstance(given, Score):
        return given
    known = [field.name for field in fields(Score)]
    require(isinstance(given, Mapping), "task", given, f"a mapping of {known}", 'Write {choices: ["yes", "no"]}.')
    unknown = sorted(set(given) - set(known), key=str)
    require(not unknown, "task", unknown, f"its fields are {known}", "Correct the name.")
    return Score(**given)


def checked_choices(name: str, given: Any) -> tuple[str, ...]:
    """The given choices as a tuple.

    Raises:
        RequestError: they are no list, too many, or one is empty or occurs twice.
    """
    listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))
    choices = tuple(given) if listed else ()
    if not 1 <= len(choices) <= MOST_CHOICES:
        rule = f"a list of 1 to {MOST_CHOICES} texts"
        shown = f"{len(choices)} of them" if choices else given
        raise RequestError(explain(name, shown, rule, 'Write ["yes", "no"].'))
    for place, choice in enumerate(choices):
        checked_text(f"{name}[{place}]", choice)
    if len(set(choices)) < len(choices):
        twice = next(choice for place, choice in enumerate(choices) if choice in choices[:place])
        raise RequestError(explain(name, twice, "each choice occurs once", "Leave out the second one."))
    return choices


def checked_text(name: str, given: Any) -> str:
    """The given text.

    Raises:
        RequestError: it is no text, is empty, or is no valid Unicode.
    """
    if isinstance(given, str) and given:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise RequestError(explain(name, given, "valid Unicode", "Re-encode it.")) from None
        return given
    rule = "a text to score is text, not null and not empty"
    raise RequestError(explain(name, given, rule, 'Fill it in, or quote it: "yes".'))

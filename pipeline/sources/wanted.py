"""The columns that a job asks for: a cell of another column never fails its row."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import RunConfig
from pipeline.settings.template import PromptTemplate

PROMPT_COLUMNS = ("prompt", "messages", "prompt_token_ids", "conversations")
"""Columns of prompts where no setting names one."""
_PLACES = ("prompt_column", "messages_column", "token_ids_column")
_OTHERS = ("tools_column", "chat_template_kwargs_column", "id_column")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a job asks for.

    Attributes:
        columns: their names; None is all.
        text: the column of text prompts: a value of another kind in it is no prompt, not even as JSON.
        written: columns whose cells a template writes into prompts: 1 there is not 1.0. None is all.
    """

    columns: frozenset[str] | None = None
    text: str | None = PROMPT_COLUMNS[0]
    written: frozenset[str] | None = frozenset()

    def has(self, name: str) -> bool:
        """Whether a column is asked for."""
        return self.columns is None or name in self.columns

    def writes(self, name: str) -> bool:
        """Whether a template writes a column's cells into prompts."""
        return self.written is None or name in self.written


ALL_COLUMNS = Wanted()


def columns_named_by(config: RunConfig) -> list[tuple[str, str]]:
    """Every column that a configuration names, with the setting that names it."""
    own = [(setting, getattr(config, setting)) for setting in (*_PLACES, *_OTHERS)]
    named = [(setting, name) for setting, name in own if name is not None]
    named += [(f"sampling_columns.{k}", v) for k, v in config.sampling_columns.items()]
    return named + [("columns", name) for name in config.columns or ()]


def wanted_by(config: RunConfig) -> Wanted:
    """The columns that a configuration asks for."""
    template = None if config.prompt_template is None else PromptTemplate(config.prompt_template)
    is_named = template is not None or any(getattr(config, place) is not None for place in _PLACES)
    text = config.prompt_column if is_named else PROMPT_COLUMNS[0]
    written = frozenset() if template is None else None if template.takes_whole_row else template.names
    if config.columns is None or written is None:
        return Wanted(text=text, written=written)
    names = {name for _, name in columns_named_by(config)}
    names |= set(PROMPT_COLUMNS) if template is None else set(template.names)
    return Wanted(columns=frozenset(names), text=text, written=written)

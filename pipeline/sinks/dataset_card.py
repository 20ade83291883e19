"""Cards of published rows: a file next to JSON Lines parts with their types, and the README of a repository on a hub.

JSON has no types: a reader infers them from the first rows, and fails where these are null or empty and later ones are
not. ``datasets.load_dataset(FOLDER)`` reads the file :data:`NAME` of the folder, and casts the rows to the types there.

The first lines of the README are YAML that hub and ``datasets`` read: license, tags, which files are rows, and for JSON
Lines their types. The first line of its text names its publication, so that the same publication is known again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import yaml

from pipeline.codec import tokens_per_forward
from pipeline.sinks.formats import FORMATS

NAME = ".huggingface.yaml"
"""Other readers of a folder skip the file, as its name begins with a dot."""
_HEAD = b"# Types of the published rows, for datasets.load_dataset(FOLDER). Written by WeDLM Batch.\n"


def card_of(schema: pa.Schema, pattern: str) -> bytes:
    """The content of the file for parts of this schema, whose names match ``pattern``."""
    return _HEAD + yaml.safe_dump(card_fields(schema, pattern), sort_keys=False, allow_unicode=True).encode()


def card_fields(schema: pa.Schema | None, pattern: str) -> dict[str, Any]:
    """The fields that ``datasets`` reads: names of the files, and types of JSON values that files do not state.

    ``schema``: of JSON Lines; None for files that hold their schema.
    """
    files = {"configs": [{"config_name": "default", "data_files": pattern}]}
    return files if schema is None else {**files, "dataset_info": {"features": _fields(json_schema(schema))}}


def is_card(data: bytes) -> bool:
    """Whether a file of that name is one of ours."""
    return data.startswith(_HEAD)


def json_schema(schema: pa.Schema) -> pa.Schema:
    """The types that the values of :mod:`pipeline.sinks.json_values` can be cast to."""
    return pa.schema([(field.name, _json_type(field.type)) for field in schema])


def _json_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _json_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _json_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _json_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", _json_type(kind.key_type)), ("value", _json_type(kind.item_type))]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_json_type(kind.value_type))
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    is_text = pa.types.is_large_string(kind) or kind in (pa.string_view(), pa.binary_view())
    return pa.string() if is_bytes or is_text else kind


def _fields(fields: pa.Schema | pa.StructType) -> list[dict[str, Any]]:
    return [{"name": field.name, **_type(field.type)} for field in fields]


def _type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"struct": _fields(kind)}
    if not pa.types.is_list(kind):
        return {"dtype": _NAMES.get(kind, str(kind))}
    inner = kind.value_type
    if pa.types.is_struct(inner):
        return {"list": _fields(inner)}
    return {"list": _type(inner) if pa.types.is_list(inner) else _type(inner)["dtype"]}


_NAMES = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date32",
          pa.date64(): "date64"}  # fmt: skip
"""Names of types in ``datasets``, where Arrow writes them otherwise."""

_MARK = "<!-- Made by WeDLM Batch from publication {}; a push replaces this file, unless this line is gone. -->"
_MARKED = re.compile(re.escape(_MARK).replace(r"\{\}", "([0-9a-f]+)"))
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
          (10**8, "10M<n<100M"), (10**9, "100M<n<1B"))  # fmt: skip
_MOST_TYPE = 60


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Sums over output rows.

    Attributes:
        rows: output rows: one for each sample, and one for each failed input row.
        failed: of these, those of failed input rows.
        inputs: input rows.
        completion_tokens, prompt_tokens, forwards: sums over the samples.
        longest: completion tokens of the longest sample.
        finish_reasons: number of rows by reason.
        strategies: number of samples by strategy.
        models: number of rows by model, as the rows name it.
    """

    rows: int = 0
    failed: int = 0
    inputs: int = 0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    forwards: int = 0
    longest: int = 0
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    strategies: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The content of a card.

    Attributes:
        repo: name of the repository.
        digest: of the publication and of everything else that the card is made from.
        license: identifier for the card's license field, or None.
        model: name of the model, for people; empty if no row names one.
        settings: sampling parameters and the like that are worth naming.
        format: of the published files.
        schema: of the rows.
        statistics: of the rows.
        version: of this package.
        selected: whether the rows are a choice from another output, by a filter.
    """

    repo: str
    digest: str
    license: str | None
    model: str
    settings: Mapping[str, Any]
    format: str
    schema: pa.Schema
    statistics: RowStatistics
    version: str
    selected: bool = False


def mark_of(text: str) -> str | None:
    """The digest that a card was made with; None for a README of somebody else."""
    found = _MARKED.search(text)
    return None if found is None else found[1]


def card_text(facts: CardFacts) -> str:
    """The whole README."""
    found = facts.statistics
    lines = [
        "---",
        yaml.safe_dump(_front(facts), sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        _MARK.format(facts.digest),
        "",
        f"# {facts.repo.rpartition('/')[2]}",
        "",
        _origin(facts),
        "",
        "## Load",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("{facts.repo}", split="train")',
        "```",
        "",
        "## Statistics",
        "",
        *_table(("", "count"), _statistics(found, selected=facts.selected)),
        "",
        *(["Failed rows have `finish_reason` = `error` and the reason in `error`.", ""] if found.failed else []),
        "## Settings",
        "",
        *_table(("setting", "value"), [(name, f"`{_code(value)}`") for name, value in facts.settings.items()]),
        "",
        "## Columns",
        "",
        *_table(("column", "type"), [(f"`{_code(f.name)}`", f"`{_code(_shown(f.type))}`") for f in facts.schema]),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _origin(facts: CardFacts) -> str:
    """The kind of the rows."""
    by = f" by the model `{_code(facts.model)}`" if facts.model else ""
    made = f"Rows generated{by} with WeDLM Batch {facts.version}"
    if facts.selected:
        return f"{made}; a filter kept these."
    return f"{made}: each input row was answered exactly once, or is marked as failed."


def _front(facts: CardFacts) -> dict[str, Any]:
    size = next((name for limit, name in _SIZES if facts.statistics.rows < limit), "n>1B")
    pattern = f"data-*/*{FORMATS[facts.format].suffix}"
    types = None if FORMATS[facts.format].has_types else facts.schema
    return {
        **({"license": facts.license} if facts.license else {}),
        "size_categories": [size],
        "tags": ["synthetic", "wedlm-batch"],
        **card_fields(types, pattern),
    }


def _statistics(found: RowStatistics, *, selected: bool) -> list[tuple[str, str]]:
    samples = found.rows - found.failed
    asked = [("input rows", f"{found.inputs:,}"), ("of which failed", f"{found.failed:,}")]
    counts: list[tuple[str, str]] = [
        *([] if selected else asked),  # a filter may drop the first sample of an input row and keep the second
        ("generations", f"{samples:,}"),
        ("prompt tokens", f"{found.prompt_tokens:,}"),
        ("generated tokens", f"{found.completion_tokens:,}"),
    ]
    if samples:
        counts.append(("generated tokens per generation", f"{found.completion_tokens / samples:,.1f}"))
        counts.append(("of the longest generation", f"{found.longest:,}"))
    if found.forwards:
        counts.append(
            ("generated tokens per forward", f"{tokens_per_forward(found.completion_tokens, found.forwards):,.2f}")
        )
    counts += [(f"finish reason `{name}`", f"{count:,}") for name, count in sorted(found.finish_reasons.items())]
    return counts + [(f"strategy `{name}`", f"{count:,}") for name, count in sorted(found.strategies.items())]


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]


def _shown(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= _MOST_TYPE else f"{text[:_MOST_TYPE]}..."


def _code(value: Any) -> str:
    """A value between back-ticks in a table: nothing in it ends either."""
    return str(value).replace("`", "'").replace("|", "\\|").replace("\n", " ")

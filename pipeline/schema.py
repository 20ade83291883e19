"""The column names and Arrow schemas of the output.

Output table (version 4): the input columns with their Arrow types, then the columns of :data:`RESULT_FIELDS`. ``stats``
(how a row was decoded) and ``timings`` may differ from run to run. With a deterministic strategy the columns of
:data:`DATA_COLUMNS` are byte-identical for any number of actors. Outputs of earlier
versions are refused.

A column whose value is an attribute of ``Generation`` needs nothing but its field in :data:`RESULT_FIELDS`; any other
needs a function in :mod:`pipeline.codec`. The fields of ``stats`` are those of ``wedlm_core.statistics.STATISTICS``,
those of ``evidence`` those of ``wedlm_core.evidence.EVIDENCE``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from pipeline.codec import EVIDENCE, STATISTICS
from pipeline.errors import ConfigError

SCHEMA_VERSION = 4
_VERSION_KEY = b"wedlm.schema_version"

_ARROW = {"int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "list<int32>": pa.list_(pa.int32()),
          "bool": pa.bool_(), "string": pa.string()}  # fmt: skip
STATS_TYPE = pa.struct([pa.field(s.name, _ARROW[s.arrow]) for s in STATISTICS if s.arrow is not None])
"""Fields of ``wedlm_core.CommitStats`` under their names there; entropies in nats."""


EVIDENCE_TYPE = pa.struct([pa.field(name, _ARROW[arrow]) for name, arrow in EVIDENCE])
"""Fields of ``wedlm_core.Evidence`` under their names there."""

TOP_TYPE = pa.struct([pa.field("token_id", pa.int32()), pa.field("logprob", pa.float32())])
"""One of the most likely tokens at a place; nats."""

TIMINGS_TYPE = pa.struct([pa.field("queue_seconds", pa.float64()), pa.field("run_seconds", pa.float64())])

RESULT_FIELDS: tuple[pa.Field, ...] = (
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("sample_index", pa.int32(), nullable=False),
    pa.field("text", pa.string()),
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("finish_reason", pa.string(), nullable=False),
    pa.field("error", pa.string()),
    pa.field("retry", pa.int32()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("model", pa.string(), nullable=False),
    pa.field("strategy", pa.string()),
    pa.field("params_hash", pa.string()),
    pa.field("seed", pa.int64()),
    pa.field("logprobs", pa.list_(pa.float32())),
    pa.field("top_logprobs", pa.list_(pa.list_(TOP_TYPE))),
    pa.field("evidence", EVIDENCE_TYPE),
    pa.field("stats", STATS_TYPE),
    pa.field("timings", TIMINGS_TYPE),
)

REASONING_FIELD = pa.field("reasoning", pa.string())
"""Stands after ``text`` where the run takes the reasoning apart; ``text`` is the answer then."""

MESSAGES_FIELD = pa.field("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))
"""Stands before ``text`` where rows are conversations: all messages, the answers without their reasoning."""

DATA_COLUMNS = ("row_id", "sample_index", "text", "token_ids", "finish_reason", "error", "retry", "seed")
"""Result columns that another run with the same settings reproduces byte for byte, as it does the input columns."""


def data_columns(schema: pa.Schema, inputs: int, prefix: str = "") -> list[str]:
    """Names of the data columns of an output whose first ``inputs`` columns are the input's."""
    results = schema.names[inputs:]
    found = [prefix + name for name in DATA_COLUMNS if prefix + name in results]
    text = results.index(f"{prefix}text")
    # A column that is read out of the text, further on, may have one of these names.
    for field, place in ((REASONING_FIELD, text + 1), (MESSAGES_FIELD, text - 1)):
        if results[place : place + 1] == [prefix + field.name]:
            found.append(prefix + field.name)
    return [*schema.names[:inputs], *found]


DEAD_FIELDS: tuple[pa.Field, ...] = (
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("error_class", pa.string(), nullable=False),
    pa.field("error", pa.string(), nullable=False),
    pa.field("attempt", pa.int32(), nullable=False),
    pa.field("raw", pa.string()),
)
"""Dead-letter columns after the input columns; ``raw`` is the row as text where it did not fit its columns."""


def result_fields(
    *,
    token_ids: bool,
    logprobs: bool,
    top_logprobs: bool = False,
    reasoning: bool = False,
    messages: bool = False,
    prefix: str = "",
    scores: Sequence[pa.Field] = (),
    parsed: Sequence[pa.Field] = (),
) -> list[pa.Field]:
    """The result columns of a run; the arguments say which of the optional columns are included."""
    optional = {
        "token_ids": token_ids,
        "logprobs": logprobs,
        "top_logprobs": top_logprobs,
    }
    left_out = {name for name, wanted in optional.items() if not wanted}
    every = [*(field for field in RESULT_FIELDS if field.name not in left_out), *scores, *parsed]
    text = [field.name for field in every].index("text")
    every[text : text + 1] = [MESSAGES_FIELD] * messages + [every[text]] + [REASONING_FIELD] * reasoning
    return [field.with_name(prefix + field.name) for field in every]


def output_schema(columns: pa.Schema, fields: Sequence[pa.Field]) -> pa.Schema:
    """Schema of the output: the input's columns, then ``fields``; carries the version as metadata."""
    metadata = {**(columns.metadata or {}), _VERSION_KEY: str(SCHEMA_VERSION).encode()}
    # pandas' notes describe the input's columns only and would mislead a reader of the wider table.
    metadata.pop(b"pandas", None)
    return pa.schema([*columns, *fields], metadata=metadata)


def dead_schema(columns: pa.Schema, prefix: str = "") -> pa.Schema:
    """Schema of the dead-letter table."""
    return output_schema(columns, [field.with_name(prefix + field.name) for field in DEAD_FIELDS])


def check_collisions(columns: Sequence[str], prefix: str, parsed: Sequence[str] = ()) -> None:
    """Refuse input columns with the name of an output column, or of each other, whether in upper or lower case.

    DuckDB, Spark and Delta Lake do not tell such names apart. ``parsed``: names of columns of scores, and of
    values parsed of the text.

    Raises:
        ConfigError: names the columns and the remedy.
    """
    results = result_fields(token_ids=True, logprobs=True, top_logprobs=True)
    ours = {(prefix + name).casefold() for name in (*(field.name for field in (*results, *DEAD_FIELDS)), *parsed)}
    folded = [name.casefold() for name in columns]
    counts = Counter(folded)  # an object of JSON may have 100,000 keys
    alike = [name for name, own in zip(columns, folded, strict=True) if counts[own] > 1]
    if alike:
        raise ConfigError(
            f"input columns {alike} differ in upper and lower case only, and DuckDB, Spark and Delta Lake do not tell "
            "them apart. Rename them, or leave some out with columns=[...]."
        )
    both = [name for name, own in zip(columns, folded, strict=True) if own in ours]
    if both:
        raise ConfigError(
            f"input columns {both} have names of output columns (upper and lower case are not told apart). "
            'Set column_prefix (for example "gen_") to rename the output\'s, or leave these out with columns=[...].'
        )

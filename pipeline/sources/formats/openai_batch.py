"""Lines of OpenAI's batch API: JSON Lines of ``custom_id``, ``method``, ``url`` and ``body``.

A row has these four as text; the body, in JSON, is read where prompts are made (:mod:`pipeline.prompts.batch_request`).
The format of the lines: https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.formats.jsonl import JsonlSource, parsed_rows
from pipeline.sources.source import NO_ROWS, read_with_retries
from pipeline.sources.text import lines_of, open_text
from pipeline.sources.types import text_field
from pipeline.types import SourceFile

CUSTOM_ID = "custom_id"
BODY = "body"
BATCH_COLUMNS = pa.schema(
    [
        pa.field(CUSTOM_ID, pa.string()),
        pa.field("method", pa.string()),
        pa.field("url", pa.string()),
        text_field(BODY),
    ]
)
_TELLTALE = {CUSTOM_ID, "url", BODY}
_OBJECTS = 20
"""Objects at the begin of a file that show whether it is a batch; a few of them may be broken."""
_MOST_LINES = 1000
"""Lines among which these are looked for."""


class OpenAIBatchSource(JsonlSource):
    """Rows of OpenAI batch files, plain or compressed."""

    label = "OpenAI batch"
    input_format = "openai-batch"  # its suffixes are those of JSON Lines

    @classmethod
    def recognises(cls, file: SourceFile, options: Mapping[str, Any]) -> bool:
        """Whether one of the first objects has the fields of a batch line and no others."""

        def first_objects() -> list[Any]:
            with open_text(file.path, options) as stream:
                rows = itertools.islice(parsed_rows(lines_of(stream)), _MOST_LINES)
                return list(itertools.islice((row for row in rows if isinstance(row, Mapping)), _OBJECTS))

        found = read_with_retries(first_objects, file.path)
        return any(_TELLTALE <= row.keys() <= set(BATCH_COLUMNS.names) for row in found)

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> OpenAIBatchSource:
        """These files.

        Raises:
            SourceError: a damaged file, or none of them has a row.
        """
        source = cls(files, BATCH_COLUMNS, options)
        if next(source.slices(1), None) is None:
            raise SourceError(f"{files[0].path}: {NO_ROWS}")
        return source

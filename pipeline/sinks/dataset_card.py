"""The types of JSON Lines parts, in the form of the ``datasets`` library, for a file next to the data files.

JSON has no types: a reader infers them from the first rows, and fails where these are null or empty and later ones are
not. ``datasets.load_dataset(FOLDER)`` reads the file :data:`NAME` of the folder, and casts the rows to the types there.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import yaml

NAME = ".huggingface.yaml"
"""Other readers of a folder skip the file, as its name begins with a dot."""
_MARK = b"# Types of the published rows, for datasets.load_dataset(FOLDER). Written by WeDLM Batch.\n"


def card_of(schema: pa.Schema, pattern: str) -> bytes:
    """The content of the file for parts of this schema, whose names match ``pattern``."""
    return _MARK + yaml.safe_dump(card_fields(schema, pattern), sort_keys=False, allow_unicode=True).encode()


def card_fields(schema: pa.Schema | None, pattern: str) -> dict[str, Any]:
    """The fields that ``datasets`` reads: names of the files, and types of JSON values that files do not state.

    Args:
        schema: of JSON Lines; None for files that hold their schema.
        pattern: that the files' names match.
    """
    files = {"configs": [{"config_name": "default", "data_files": pattern}]}
    return files if schema is None else {**files, "dataset_info": {"features": _fields(json_schema(schema))}}


def is_card(data: bytes) -> bool:
    """Whether a file of that name is one of ours."""
    return data.startswith(_MARK)


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

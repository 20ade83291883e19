"""Loads data sets with the ``datasets`` library: by name (``load_dataset``), or from a folder saved to disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, SourceError
from pipeline.storage.urls import is_url, with_secrets

_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_SAVED = ("state.json", "dataset_dict.json")


def is_dataset_name(name: str) -> bool:
    """Whether text has the form of a hub id, ``owner/name``."""
    return _NAME.fullmatch(name) is not None


def is_saved(keys: Iterable[str]) -> bool:
    """Whether a folder with these files is a dataset (or several splits of one) saved to disk."""
    return any(name in _SAVED for name in keys)


def load_named(name: str, options: Mapping[str, Any]) -> Any:
    """``datasets.load_dataset(name, **options)``, one split of it.

    Raises:
        SourceError: it cannot be loaded, or it has several splits and none is chosen.
        ConfigError: there is no secret where a reference says.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(name, **with_secrets(options, "dataset_options"))
    except ConfigError:
        raise
    except Exception as error:  # the library, its builders and the hub's client each have exceptions of their own
        raise SourceError(
            f"input={name!r}: neither a file or folder here, nor loadable as a dataset "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}). "
            "Check the name and dataset_options; offline, fill the hub's cache beforehand."
        ) from error
    return _one_split(name, loaded)


def load_saved(folder: str, options: Mapping[str, Any], storage_options: Mapping[str, Any]) -> Any:
    """``datasets.load_from_disk(folder)``; ``options`` may name the ``split``.

    Raises:
        SourceError: it cannot be loaded, or it has several splits and none is chosen.
        ConfigError: there is no secret where a reference says.
    """
    import datasets

    split = options.get("split")
    try:
        loaded = datasets.load_from_disk(
            folder, storage_options=with_secrets(storage_options) if is_url(folder) else None
        )
        return _one_split(folder, loaded if split is None else loaded[split])
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, (SourceError, ConfigError)):
            raise
        raise SourceError(
            f"input={folder!r}: not a readable dataset saved to disk, or without split {split!r} ({error!r}). "
            "Save it again, or name a split that it has."
        ) from error


def features_of(schema: pa.Schema) -> Any:
    """A schema as ``datasets.Features``."""
    import datasets

    return datasets.Features.from_arrow_schema(schema)


def _one_split(name: str, loaded: Any) -> Any:
    if not isinstance(loaded, Mapping):
        return loaded
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise SourceError(f"input={name!r}: has splits {list(loaded)}. Choose one by dataset_options={{'split': ...}}.")

"""Turn a model's name (the shipped ``tiny``, a folder, an fsspec URL or a hub id) into a local folder.

Imports no torch, so that tokenising tasks can use it. Remote folders are downloaded into a cache
(``$WEDLM_CACHE``, else ``$XDG_CACHE_HOME/wedlm-batch``, else ``~/.cache/wedlm-batch``), once per content
(:mod:`wedlm_core.model.download`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wedlm_core.cache import is_writable, user_cache, writable_folder
from wedlm_core.checks import is_text
from wedlm_core.errors import ConfigError, WeightsError, explain, first_line
from wedlm_core.model.download import MODEL_FILES, content_key, fetch_once, is_whole, model_files
from wedlm_core.redaction import keep_url_credentials, redact
from wedlm_core.references import resolved

__all__ = ["MODEL_FILES", "cache_root", "resolve"]

_VARIABLE = "WEDLM_CACHE"
_LONGEST = 4096  # characters of a path or URL
_TINY = Path(__file__).resolve().parent.parent / "tiny"


def resolve(
    model: str | os.PathLike[str],
    revision: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    setting: str = "model",
    needs: str = "config.json",
) -> Path:
    """The local folder with the ``config.json``, weights and tokenizer of ``model``.

    Args:
        model: ``"tiny"``; a local folder; an fsspec URL (``s3://bucket/folder``); or a hub id
            (``owner/name``). A local folder wins over a hub id of the same spelling.
        revision: branch, tag or commit; hub ids only.
        storage_options: keyword arguments of the fsspec file system; URLs only. Secrets by reference, see
            :mod:`wedlm_core.references`.
        setting: the name of ``model`` in errors.
        needs: a file that the folder has to have.

    Raises:
        WeightsError: there is no usable model; the message has the remedy.
        ConfigError: a name is not valid text, or ``revision`` is given for something other than a hub id.
    """
    given = os.fspath(model) if isinstance(model, os.PathLike) else model
    name = _text(setting, given, "Give a folder, URL or hub id.")
    if revision is not None:
        _text("revision", revision, "Give a branch, tag or commit.")
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigError(explain("storage_options", type(storage_options), "a mapping", "Pass a dict."))
    is_url = "://" in name
    folder = _TINY if name == "tiny" else Path(name.removeprefix("file://")).expanduser()
    is_local = name == "tiny" or (not is_url and folder.is_dir()) or name.startswith("file://")
    if revision is not None and (is_local or is_url):
        raise ConfigError(
            explain("revision", revision, f"only hub ids have revisions, and {setting}={name!r} is not one", "Drop it.")
        )
    if is_local:
        return _checked(folder, name, setting, needs)
    if is_url:
        keep_url_credentials(name)
        return _checked(_download(name, resolved(storage_options or {}), setting), name, setting, needs)
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise WeightsError(explain(setting, name, "no such folder", "Check the path (relative to the working folder)."))
    return _checked(_from_hub(name, revision, setting), name, setting, needs)


def _text(name: str, value: object, remedy: str) -> str:
    if not is_text(value) or not 1 <= len(value) <= _LONGEST or "\0" in value:
        raise ConfigError(explain(name, value, f"valid text of 1 to {_LONGEST} characters", remedy))
    return value


def cache_root() -> Path:
    """The cache folder for remote models."""
    if own := os.environ.get(_VARIABLE):
        return Path(own).expanduser()
    return user_cache("wedlm-batch")


def _checked(folder: Path, name: str, setting: str, needs: str) -> Path:
    if not folder.is_dir():
        raise WeightsError(explain(setting, name, f"{folder} is not a folder", "Check the path."))
    if not (folder / needs).is_file():
        raise WeightsError(explain(setting, name, f"{folder} has no {needs}", "Give a folder in Hugging Face layout."))
    return folder


def _snapshot(name: str, revision: str | None) -> str:
    """The model in the hub's cache, or in a temporary one if that is read-only and lacks it."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    load = functools.partial(snapshot_download, name, revision=revision, allow_patterns=list(MODEL_FILES))
    wanted = Path(constants.HF_HUB_CACHE)
    if is_writable(wanted):
        return str(load())
    try:
        return str(load(local_files_only=True))
    except LocalEntryNotFoundError:
        return str(load(cache_dir=writable_folder(wanted, "HF_HOME")))


def _from_hub(name: str, revision: str | None, setting: str) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(_snapshot(name, revision))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = f"neither a local folder nor loadable from the hub ({type(error).__name__}: {first_line(error)})"
        remedy = "Check the name and revision; offline, give a local folder or fill the hub's cache beforehand."
        raise WeightsError(explain(setting, name, reason, remedy)) from error


def _download(url: str, options: dict[str, Any], setting: str) -> Path:
    """Copy the model files under ``url`` into the cache, unless this content is there already."""
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
        files = model_files(fs, root)
        if not files:
            raise WeightsError(explain(setting, url, "no model files there", f"It needs some of {MODEL_FILES}."))
        key = content_key(fs, url, files)
        if is_whole(kept := cache_root() / "models" / key):  # it may be a folder that was filled beforehand
            return kept
        return fetch_once(fs, files, writable_folder(cache_root() / "models", _VARIABLE) / key)
    except WeightsError:
        raise
    except Exception as error:  # every file system has its own exceptions
        reason = f"cannot be read ({type(error).__name__}: {first_line(error)})"
        remedy = "Check the URL, credentials and storage_options, and that its fsspec package is installed."
        # The exception is chained only if its message quotes no credentials.
        cause = error if redact(str(error)) == str(error) else None
        raise WeightsError(explain(setting, url, reason, remedy)) from cause

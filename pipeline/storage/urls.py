"""Paths, URLs and their file systems: the only module of the pipeline that opens fsspec file systems.

Listings are never cached, as another process may have written since. Errors of a file system that are no OSErrors are
turned into OSErrors, so that callers handle one kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.codec import CoreConfigError, keep_url_credentials, quotes_secrets, redact, resolved
from pipeline.errors import ConfigError

__all__ = [
    "READ_AHEAD_BYTES",
    "CredentialsError",
    "MisuseError",
    "as_os_errors",
    "is_url",
    "join",
    "lies_inside",
    "local_path",
    "open_filesystem",
    "open_remote",
    "plain_name",
    "with_secrets",
]


_MISUSE = (TypeError, ValueError, AttributeError, KeyError, ImportError, NotImplementedError)


_NO_CREDENTIALS = frozenset((
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "NoAuthTokenError",
    "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError",  # botocore
    "DefaultCredentialsError", "RefreshError",  # google.auth
    "ClientAuthenticationError",  # azure.core
))  # fmt: skip
"""Exceptions, by name, with which clients of stores say that they have no (valid) credentials."""


class MisuseError(OSError):
    """A file system does not understand a request, so another attempt would fail too."""


class CredentialsError(PermissionError):
    """There are no credentials for a store, or only part of them, so another attempt would fail too."""


def plain_name(location: str | os.PathLike[str]) -> str:
    """A path or URL as text; ``file://`` URLs become paths."""
    return os.fspath(location).removeprefix("file://")


def is_url(location: str | os.PathLike[str]) -> bool:
    """Whether this is an URL of something else than the local file system."""
    return "://" in plain_name(location)


def local_path(location: str | os.PathLike[str]) -> Path:
    """The absolute path of a local location."""
    return Path(plain_name(location)).expanduser().absolute()


def join(folder: str, name: str) -> str:
    """``name`` in ``folder``; either may be a path or an URL."""
    return f"{folder.rstrip('/')}/{name}"


def lies_inside(location: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether ``location`` is ``folder`` or below it, going by their names."""
    if is_url(location) != is_url(folder):
        return False
    if is_url(location):
        return f"{plain_name(location).rstrip('/')}/".startswith(f"{plain_name(folder).rstrip('/')}/")
    return local_path(location).is_relative_to(local_path(folder))


READ_AHEAD_BYTES = 4 * 2**20
"""What a read from a store fetches beyond what was asked for; the default of some file systems is far more."""


def open_remote(fs: Any, path: str) -> BinaryIO:
    """Open an object for reading at random."""
    with as_os_errors():
        return fs.open(path, "rb", block_size=READ_AHEAD_BYTES, cache_type="readahead")


def open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """``(fsspec file system, path in it)`` of an URL.

    The file system is pickled as URL and options: it resolves references to secrets anew where it arrives.

    Args:
        url: of a file, folder or pattern.
        options: keyword arguments of the file system; secrets by reference (:mod:`wedlm_core.references`).

    Raises:
        ConfigError: there is no secret where a reference says.
        OSError: the scheme is unknown, its package is missing, or an option is refused.
    """
    import fsspec

    given = with_secrets(options)
    keep_url_credentials(url)  # before anything can quote a part of it
    with as_os_errors():
        fs, path = fsspec.core.url_to_fs(url, **{"use_listings_cache": False, **given})
        # Only of this object: fsspec's own way of pickling it would show the values.
        fs.__reduce_ex__ = lambda protocol: (_reopened, (url, dict(options)))
        return fs, path


def with_secrets(options: Mapping[str, Any], name: str = "storage_options") -> dict[str, Any]:
    """Keyword arguments with the secrets that they refer to, to be used at once and not kept.

    Raises:
        ConfigError: there is no secret where a reference says.
    """
    try:
        return resolved(options, name)
    except CoreConfigError as error:
        raise ConfigError(str(error)) from None


def _reopened(url: str, options: Mapping[str, Any]) -> Any:
    return open_filesystem(url, options)[0]


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Turn whatever a file system raises inside the block into an OSError, without the credentials that it quotes."""
    try:
        yield
    except OSError as error:
        if quotes_secrets(error):
            raise _without_secrets(error) from None
        raise
    except Exception as error:  # every file system has exceptions of its own
        kind = _kind_of(error)
        # With a colon the name of an error about credentials would read like a secret, and be masked.
        text = f"{type(error).__name__}, {error}" if kind is CredentialsError else f"{type(error).__name__}: {error}"
        # What quotes credentials is no cause to show either.
        raise kind(redact(text)) from (None if quotes_secrets(error) else error)


def _kind_of(error: Exception) -> type[OSError]:
    if any(kind.__name__ in _NO_CREDENTIALS for kind in type(error).__mro__):
        return CredentialsError
    return MisuseError if isinstance(error, _MISUSE) else OSError


def _without_secrets(error: OSError) -> OSError:
    """An error of the same kind, as callers tell one that is worth another attempt by its kind and number."""
    text = redact(str(error.strerror or error))
    names = [redact(name) if isinstance(name, str) else name for name in (error.filename, error.filename2)]
    kind = next(k for k in type(error).__mro__ if k.__module__ in ("builtins", MisuseError.__module__))
    if error.errno is None:
        return kind(text)
    return kind(error.errno, text, names[0], None, names[1])

"""Paths, URLs and their file systems: the only module of the pipeline that opens fsspec file systems.

Listings are never cached, as another process may have written since. Errors of a file system that are no OSErrors are
turned into OSErrors, so that callers handle one kind.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote_to_bytes

from pipeline.codec import CoreConfigError, keep_url_credentials, quotes_secrets, redact, resolved
from pipeline.errors import ConfigError

_MISUSE = (TypeError, ValueError, AttributeError, KeyError, ImportError, NotImplementedError)


_LOCAL = ("file", "local")
_NO_CREDENTIALS = frozenset((
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "NoAuthTokenError",
    "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError",  # botocore
    "DefaultCredentialsError", "RefreshError",  # google.auth
    "ClientAuthenticationError",  # azure.core
))  # fmt: skip
"""Exceptions of clients of stores, by name, that mean no (valid) credentials."""


class MisuseError(OSError):
    """A file system does not understand a request, so another attempt would fail too."""


class StoreError(OSError):
    """A store's client failed with an exception of its own; another attempt may succeed."""


class CredentialsError(PermissionError):
    """There are no credentials for a store, or only part of them, so another attempt would fail too."""


def plain_name(location: str | os.PathLike[str]) -> str:
    """A path or URL as text; ``file://`` URLs, as :meth:`pathlib.Path.as_uri` writes them, become paths."""
    name = os.fspath(location)
    scheme, slashes, path = name.partition("://")
    if scheme not in _LOCAL or not slashes:
        return name
    return os.fsdecode(unquote_to_bytes(path.removeprefix("localhost")))


def is_url(location: str | os.PathLike[str]) -> bool:
    """Whether this is an URL of something else than the local file system."""
    return "://" in plain_name(location)


def local_path(location: str | os.PathLike[str]) -> Path:
    """The absolute path of a local location; ``~`` at its begin is the home folder, and ``./~`` is not."""
    return Path(os.path.expanduser(plain_name(location))).absolute()


def join(folder: str, name: str) -> str:
    """``name`` in ``folder``; either may be a path or an URL."""
    return f"{folder.rstrip('/')}/{name}"


def lies_inside(location: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether ``location`` is ``folder`` or below it; links and ``..`` are followed."""
    one, other = _place(location), _place(folder)
    return one[0] == other[0] and f"{one[1].rstrip('/')}/".startswith(f"{other[1].rstrip('/')}/")


def relative(location: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """The path from ``folder`` to ``location``, which lies inside."""
    return posixpath.relpath(_place(location)[1], _place(folder)[1])


def _place(location: str | os.PathLike[str]) -> tuple[str, str]:
    """The kind of file system of a location, and the path in it."""
    import fsspec

    if not is_url(location):
        return "", os.path.realpath(local_path(location))
    scheme, _, path = plain_name(location).partition("://")
    try:
        names = fsspec.get_filesystem_class(scheme).protocol  # one file system may have several: s3 and s3a
    except (ImportError, ValueError):
        names = scheme
    return (names if isinstance(names, str) else names[0]), posixpath.normpath(path)


READ_AHEAD_BYTES = 4 * 2**20
"""Bytes that a read from a store fetches beyond its range; the default of some file systems is far more."""


def open_remote(fs: Any, path: str) -> BinaryIO:
    """Open an object for reading at random."""
    with as_os_errors():
        inner = fs.open(path, "rb", block_size=READ_AHEAD_BYTES, cache_type="readahead")
    return cast("BinaryIO", _RemoteFile(inner))


class _RemoteFile(io.RawIOBase):
    """An object that is read at random. Exceptions of the store's client and reads that end too early are OSErrors."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._size: int | None = getattr(inner, "size", None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        with as_os_errors():
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def read(self, size: int | None = -1) -> bytes:
        with as_os_errors():
            left = None if self._size is None else max(0, self._size - self._inner.tell())
            data: bytes = self._inner.read(-1 if size is None else size)
        wanted = left if size is None or size < 0 else size if left is None else min(size, left)
        if left is not None and wanted is not None and len(data) < wanted:
            raise StoreError(f"{len(data)} bytes came of {wanted} that were asked for")
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        with as_os_errors():
            return self._inner.readline(-1 if size is None else size)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """``(fsspec file system, path in it)`` of an URL.

    The file system is pickled as URL and options: it resolves references to secrets again where it arrives.

    Secrets in ``options`` are references (:mod:`wedlm_core.references`).

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
        if type(error) is OSError and error.errno is None:
            raise StoreError(str(error)) from error
        raise
    except Exception as error:  # every file system has exceptions of its own
        kind = _kind_of(error)
        # With a colon the name of an error about credentials would read like a secret, and be masked.
        text = f"{type(error).__name__}, {error}" if kind is CredentialsError else f"{type(error).__name__}: {error}"
        # A cause that quotes credentials is not shown either.
        raise kind(redact(text)) from (None if quotes_secrets(error) else error)


def _kind_of(error: Exception) -> type[OSError]:
    if any(kind.__name__ in _NO_CREDENTIALS for kind in type(error).__mro__):
        return CredentialsError
    return MisuseError if isinstance(error, _MISUSE) else StoreError


def _without_secrets(error: OSError) -> OSError:
    """An error of the same kind, as callers tell one that is worth another attempt by its kind and number."""
    text = redact(str(error.strerror or error))
    names = [redact(name) if isinstance(name, str) else name for name in (error.filename, error.filename2)]
    kind = next(k for k in type(error).__mro__ if k.__module__ in ("builtins", MisuseError.__module__))
    if error.errno is None:
        return kind(text)
    return kind(error.errno, text, names[0], None, names[1])

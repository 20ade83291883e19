"""``push``: uploads what an output has published to a dataset repository of a Hugging Face hub, as one commit."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import layout
from pipeline.codec import explain, redact
from pipeline.commands.published_statistics import statistics_of
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import PartRecord
from pipeline.commit.published_parts import published_rows
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, DamagedError, OutputError, PipelineError, SinkError
from pipeline.sinks.hub_card import CardFacts, card_text, mark_of
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url
from wedlm_batch.version import VERSION

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["Pushed", "push"]

_CARD = "README.md"
_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_COPY_BYTES = 2**20
_ATTEMPTS = 3
_CONFLICT = 412
_TOKEN = "Set HF_TOKEN to a token that may write there, or run `hf auth login`."
_KIND = "dataset"
_CARD_VERSION = 1
_SHOWN = ("strategy", "temperature", "top_p", "top_k", "max_tokens", "n", "window_size")


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push did.

    Attributes:
        repo: the repository, as ``user/name``.
        url: of its files at the commit; empty for a dry run.
        commit: the commit that has the publication; empty for a dry run.
        uploaded: files that were added or replaced; for a dry run those that a new repository would get.
        removed: files of earlier publications that were removed.
        unchanged: whether the repository had it all, so that nothing was uploaded.
        card: the README that was made; None if it was there, or a README of somebody else was left as it is.
    """

    repo: str
    url: str = ""
    commit: str = ""
    uploaded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: bool = False
    card: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Publication:
    """What is published, as a push sees it. ``parts``: path in the repository (and key) -> record."""

    storage: Storage
    state: RunState
    manifest: Manifest
    parts: Mapping[str, PartRecord]
    digest: str


def push(
    output: str | os.PathLike[str],
    repo: str,
    *,
    private: bool = False,
    license: str | None = None,
    revision: str | None = None,
    dry_run: bool = False,
    endpoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Pushed:
    """Upload the published files of an output, and a dataset card, to a dataset repository: all of it or nothing.

    Files that are there already are not uploaded, those of publications that were replaced are removed, and other files
    are left alone. A push of what is there makes no commit. The token comes from ``HF_TOKEN``, or from the file of
    ``hf auth login``.

    Args:
        output: the folder or URL of a run.
        repo: ``user/name``; it is made if it is not there.
        private: for a new repository; one that is there and public is refused.
        license: identifier for the card, such as ``"apache-2.0"``; None leaves the field out.
        revision: branch; None is ``main``.
        dry_run: only say what a new repository would get; asks no server.
        endpoint: of the hub; None takes ``HF_ENDPOINT``.
        storage_options: keyword arguments of the output's file system.

    Raises:
        ConfigError: a name that the hub would refuse, or a repository that is not private as asked.
        OutputError: nothing is published there.
        DamagedError: a published file is missing or not as it was published.
        SinkError: the hub refuses, or does not answer; the same call continues.
    """
    _check_names(repo, license)
    found = _published(output, storage_options, license)
    if dry_run:
        return Pushed(repo=repo, uploaded=(*found.parts, _CARD), card=_card(found, repo, license))
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi(endpoint=endpoint)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _push(api, found, repo, license, private=private, revision=revision)
        except PipelineError:
            raise
        except HFValidationError as error:
            raise ConfigError(redact(f"repo={repo!r}: {error}. Write user/name.")) from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status == _CONFLICT and attempt < _ATTEMPTS:
                continue  # somebody else has committed since the listing
            remedy = _TOKEN if status in (401, 403) else "The same command continues."
            raise SinkError(redact(f"repo={repo!r}: the hub refused ({_first_line(error)}). {remedy}")) from None
        except Exception as error:  # the client passes on whatever its transport raises
            reason = _first_line(error.__cause__ or error)
            raise SinkError(redact(f"repo={repo!r}: not uploaded ({reason}). The same command continues.")) from error
    raise AssertionError("the last attempt returns or raises")


def _check_names(repo: str, license: str | None) -> None:
    if not isinstance(repo, str) or not _REPO.fullmatch(repo):
        raise ConfigError(explain("repo", repo, "letters, digits, '-', '_' and '.'", "Write user/name."))
    if license is not None and not _LICENSE.fullmatch(license):
        rule = "an identifier in lower case, as in a card's license field"
        raise ConfigError(explain("license", license, rule, 'Write "apache-2.0", "cc-by-4.0" or "other".'))


def _published(output: str | os.PathLike[str], options: Mapping[str, Any] | None, license: str | None) -> _Publication:
    storage = open_storage(output, layout.SCRATCH, options)
    manifest = Manifest.load(storage)
    state = RunState.load(storage)
    if state is None or not manifest.publications:
        raise OutputError(f"{storage.url}: nothing is published there. Run `wedlm-batch generate` to its end first.")
    parts = {key: part for p in manifest.publications for key, part in zip(p.part_keys, p.parts, strict=True)}
    named = "".join(f"{key}\x1f{part.sha256}\x1e" for key, part in parts.items())
    digest = hashlib.blake2b(f"{_CARD_VERSION}\x1e{VERSION}\x1e{license}\x1e{named}".encode(), digest_size=12)
    return _Publication(storage=storage, state=state, manifest=manifest, parts=parts, digest=digest.hexdigest())


def _push(
    api: HfApi, found: _Publication, repo: str, license: str | None, *, private: bool, revision: str | None
) -> Pushed:
    """One attempt: compares with what is there, uploads what is not, and commits on top of what was seen."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo, head = _repository(api, repo, revision, private=private)
    there = {file.path: file for file in api.list_repo_tree(repo, recursive=True, revision=head, repo_type=_KIND)
             if hasattr(file, "blob_id")}  # fmt: skip
    missing = [key for key, part in found.parts.items() if _sha256(there.get(key)) != part.sha256]
    stale = [path for path in there if _is_part(path) and path not in found.parts]
    mark = _mark_there(api, repo, head) if _CARD in there else ""
    card = None if mark in (None, found.digest) else _card(found, repo, license)
    operations: list[Any] = [CommitOperationDelete(path) for path in stale]
    with tempfile.TemporaryDirectory(prefix="wedlm-push-") as folder:
        for key in missing:
            operation = CommitOperationAdd(key, _local(found.storage, key, folder))
            api.preupload_lfs_files(repo, [operation], repo_type=_KIND, revision=revision, free_memory=False)
            _check_sent(found, key, operation.upload_info.sha256.hex())
            if operation._upload_mode == "lfs":
                _drop_copy(operation, folder)
            operations.append(operation)
        if card is not None:
            operations.append(CommitOperationAdd(_CARD, card.encode()))
        commit = head
        if operations:
            done = api.create_commit(
                repo,
                operations,
                commit_message=f"Publish {len(found.parts)} files, up to {found.manifest.publications[-1].name}",
                commit_description=f"Publication {found.digest}",
                repo_type=_KIND,
                revision=revision,
                parent_commit=head,
            )
            commit = done.oid
    unchanged = commit == head
    return Pushed(
        repo=repo, url=f"{api.endpoint}/datasets/{repo}/tree/{commit}", commit=commit, unchanged=unchanged,
        uploaded=() if unchanged else (*missing, *([] if card is None else [_CARD])), removed=tuple(stale),
        card=None if unchanged else card,
    )  # fmt: skip


def _repository(api: HfApi, repo: str, revision: str | None, *, private: bool) -> tuple[str, str]:
    """The repository's full name and the head of the branch; both are made if they are not there.

    Raises:
        ConfigError: it is public, and was to be private.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = api.dataset_info(repo)
    except RepositoryNotFoundError:
        # With an explicit name only the token's owner can be meant, whatever is public under other names.
        repo = api.create_repo(repo, repo_type=_KIND, private=private or None, exist_ok=True).repo_id
        info = api.dataset_info(repo)
    if private and info.private is False:
        raise ConfigError(
            f"repo={repo!r}: it is there and public, and was to be private. Make it private in its settings, or leave "
            "--private out."
        )
    if revision is None:
        return repo, str(info.sha)
    try:
        return repo, str(api.dataset_info(repo, revision=revision).sha)
    except RevisionNotFoundError:
        api.create_branch(repo, branch=revision, repo_type=_KIND, exist_ok=True)
        return repo, str(api.dataset_info(repo, revision=revision).sha)


def _sha256(file: Any) -> str | None:
    return None if file is None or file.lfs is None else str(file.lfs.sha256)


def _is_part(path: str) -> bool:
    """Whether a file of the repository has the name of a published one."""
    folder, _, name = path.partition("/")
    return layout.is_publication(folder) and layout.is_part(name)


def _mark_there(api: HfApi, repo: str, head: str) -> str | None:
    """The digest in the repository's README; None for a README of somebody else, which is left as it is."""
    with tempfile.TemporaryDirectory(prefix="wedlm-push-") as folder:
        path = api.hf_hub_download(repo, _CARD, repo_type=_KIND, revision=head, local_dir=folder)
        return mark_of(Path(path).read_text(encoding="utf-8", errors="replace"))


def _local(storage: Storage, key: str, folder: str) -> str:
    """A path of a published file; one in a store is copied to ``folder``."""
    if not is_url(storage.url):
        if not (path := Path(storage.url) / key).is_file():
            raise DamagedError(f"{path}: missing", "Run again with repair; if a run is publishing, push again.")
        return str(path)
    path = Path(folder) / key.replace("/", ".")
    try:
        with storage.open(key) as source, path.open("wb") as copy:
            while chunk := source.read(_COPY_BYTES):
                copy.write(chunk)
    except FileNotFoundError:
        raise DamagedError(f"{storage.url}/{key}: missing", "Run again with repair; or push again.") from None
    return str(path)


def _check_sent(found: _Publication, key: str, sha256: str) -> None:
    """What was sent is content-addressed, and no commit names it yet."""
    if sha256 != found.parts[key].sha256:
        raise DamagedError(f"{found.storage.url}/{key}: not as it was published (its checksum differs)",
                           "Run again with repair, then push.")  # fmt: skip


def _drop_copy(operation: Any, folder: str) -> None:
    path = Path(operation.path_or_fileobj)
    operation.path_or_fileobj = b""
    if path.is_relative_to(folder):
        path.unlink()


def _card(found: _Publication, repo: str, license: str | None) -> str:
    settings = found.state.fingerprint
    widest = max(found.manifest.publications, key=lambda publication: len(publication.schema))
    parts = [part for p in found.manifest.publications for part in published_rows(found.storage, p)]
    shown = {name: settings[f"sampling.{name}"] for name in _SHOWN} | {"seed": settings["seed"]}
    facts = CardFacts(
        repo=repo,
        digest=found.digest,
        license=license,
        model=str(settings["model"]).rpartition("@")[0].rstrip("/").rpartition("/")[2],
        settings=shown,
        format=widest.format,
        schema=widest.schema,
        statistics=statistics_of(parts, settings["column_prefix"]),
        version=VERSION,
    )
    return card_text(facts)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__

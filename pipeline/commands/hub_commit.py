"""One commit to a dataset repository of a Hugging Face hub: the files of a publication, and its card."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import layout
from pipeline.commit.part_files import PartRecord
from pipeline.commit.repair import published
from pipeline.errors import ConfigError, DamagedError
from pipeline.sinks.dataset_card import mark_of
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
_KIND = "dataset"


@dataclass(frozen=True, kw_only=True)
class HubContent:
    """The wanted files of a repository.

    Attributes:
        storage: of the output.
        parts: path in the repository, and key in the output -> record.
        digest: of all of it.
        title: first line of the commit's message.
        card: makes the card for a repository's full name; reads all rows.
    """

    storage: Storage
    parts: Mapping[str, PartRecord]
    digest: str
    title: str
    card: Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The result of a push.

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


def commit_to_hub(api: HfApi, found: HubContent, repo: str, *, private: bool, revision: str | None) -> Pushed:
    """Compare with the repository, upload missing files, and commit on top of the revision that was compared.

    Raises:
        ConfigError: the repository is public, and was to be private.
        DamagedError: a published file is missing or not as it was published.
        HfHubHTTPError: the hub refuses; with status 412 because somebody else has committed since.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo, head = _repository(api, repo, revision, private=private)
    there = {file.path: file for file in api.list_repo_tree(repo, recursive=True, revision=head, repo_type=_KIND)
             if hasattr(file, "blob_id")}  # fmt: skip
    missing = [key for key, part in found.parts.items() if _sha256(there.get(key)) != part.sha256]
    stale = [path for path in there if _is_part(path) and path not in found.parts]
    mark = _mark_there(api, repo, head) if CARD in there else ""
    card = None if mark in (None, found.digest) else found.card(repo)
    operations: list[Any] = [CommitOperationDelete(path) for path in stale]
    with tempfile.TemporaryDirectory(prefix="wedlm-push-") as folder:
        for key in missing:
            path = _local(found.storage, key, found.parts[key].sha256, folder)
            operation = CommitOperationAdd(key, path)
            api.preupload_lfs_files(repo, [operation], repo_type=_KIND, revision=revision)
            _check_sent(found, key, operation.upload_info.sha256.hex())
            if operation.path_or_fileobj == b"" and path.startswith(folder):  # it is on the hub
                Path(path).unlink()
            operations.append(operation)
        if card is not None:
            operations.append(CommitOperationAdd(CARD, card.encode()))
        commit = head
        if operations:
            done = api.create_commit(
                repo,
                operations,
                commit_message=found.title,
                commit_description=f"Publication {found.digest}",
                repo_type=_KIND,
                revision=revision,
                parent_commit=head,
            )
            commit = done.oid
    unchanged = commit == head
    return Pushed(
        repo=repo, url=f"{api.endpoint}/datasets/{repo}/tree/{commit}", commit=commit, unchanged=unchanged,
        uploaded=() if unchanged else (*missing, *([] if card is None else [CARD])), removed=tuple(stale),
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
        repo = api.create_repo(repo, repo_type=_KIND, private=private or None, exist_ok=True).repo_id
        info = api.dataset_info(repo)
    if private and info.private is False:
        raise ConfigError(
            f"repo={repo!r}: this repository is public. Make it private in its settings, or leave --private out."
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
        path = api.hf_hub_download(repo, CARD, repo_type=_KIND, revision=head, local_dir=folder)
        return mark_of(Path(path).read_text(encoding="utf-8", errors="replace"))


def _local(storage: Storage, key: str, sha256: str, folder: str) -> str:
    """A path of a published file; one in a store is copied to ``folder``."""
    if not is_url(storage.url):
        if not (path := Path(storage.url) / key).is_file():
            raise DamagedError(f"{path}: missing", "Run again with repair; if a run is publishing, push again.")
        return str(path)
    path = Path(folder) / key.replace("/", ".")
    with path.open("wb") as copy, published(storage, "Run again with repair, then push."):
        check_object(storage, key, sha256, copy)
    return str(path)


def _check_sent(found: HubContent, key: str, sha256: str) -> None:
    """Uploaded files are content-addressed, and no commit names them yet."""
    if sha256 != found.parts[key].sha256:
        raise DamagedError(f"{found.storage.url}/{key}: not as it was published (its checksum differs)",
                           "Run again with repair, then push.")  # fmt: skip

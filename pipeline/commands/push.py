"""``push``: uploads the published rows of an output to a dataset repository of a Hugging Face hub, as one commit."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.codec import FinishReason, explain, redact
from pipeline.commands.hub_commit import CARD, HubContent, Pushed, commit_to_hub
from pipeline.commands.published_output import PublishedOutput, open_published
from pipeline.errors import ConfigError, PipelineError, SinkError
from pipeline.reporting.histogram import counts_of
from pipeline.sinks.dataset_card import CardFacts, RowStatistics, card_text
from pipeline.storage.open import open_storage
from wedlm_base.version import VERSION

_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_ATTEMPTS = 3
_CONFLICT = 412
_TOKEN = "Set HF_TOKEN to a token that may write there, or run `hf auth login`."
_CARD_VERSION = 1
_SHOWN = ("strategy", "temperature", "top_p", "top_k", "max_tokens", "n", "window_size")


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
    are left alone. A push without changes makes no commit. The token comes from ``HF_TOKEN``, or from the file of
    ``hf auth login``.

    Args:
        output: the folder or URL of a run, or of a filter.
        repo: ``user/name``; it is made if it is not there.
        private: for a new repository; one that is there and public is refused.
        license: identifier for the card, such as ``"apache-2.0"``; None leaves the field out.
        revision: branch; None is ``main``.
        dry_run: only list the files of a new repository; asks no server.
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
        return Pushed(repo=repo, uploaded=(*found.parts, CARD), card=found.card(repo))
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi(endpoint=endpoint)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return commit_to_hub(api, found, repo, private=private, revision=revision)
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


def _published(output: str | os.PathLike[str], options: Mapping[str, Any] | None, license: str | None) -> HubContent:
    found = open_published(open_storage(output, layout.SCRATCH, options))
    parts = found.manifest.parts
    named = "".join(f"{key}\x1f{part.sha256}\x1e" for key, part in parts.items())
    digest = hashlib.blake2b(f"{_CARD_VERSION}\x1e{VERSION}\x1e{license}\x1e{named}".encode(), digest_size=12)
    return HubContent(
        storage=found.storage,
        parts=parts,
        digest=digest.hexdigest(),
        title=f"Publish {len(parts)} files, up to {found.manifest.publications[-1].name}",
        card=lambda repo: _card(found, repo, license, digest.hexdigest()),
    )


def _card(found: PublishedOutput, repo: str, license: str | None, digest: str) -> str:
    settings = found.state.fingerprint
    statistics = statistics_of(found.tables(), found.prefix)
    if found.state.derived is None:
        models = [str(settings["model"]).rpartition("@")[0], *filter(None, (settings.get("adapter"),))]
        shown = {name: settings[f"sampling.{name}"] for name in _SHOWN} | {"seed": settings["seed"]}
    else:
        models = sorted(statistics.models)
        shown = {name: value for name, value in settings.items() if name.startswith("filter.") and value}
    facts = CardFacts(
        repo=repo,
        digest=digest,
        license=license,
        model=", ".join(dict.fromkeys(name.rstrip("/").rpartition("/")[2] for name in models)),
        selected=found.state.derived is not None,
        settings=shown,
        format=found.format,
        schema=found.schema,
        statistics=statistics,
        version=VERSION,
    )
    return card_text(facts)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__


def statistics_of(tables: Iterable[pa.Table], prefix: str = "") -> RowStatistics:
    """The sums over published rows.

    Raises:
        DamagedError: a file is missing or not as it was published.
    """
    longest, sums = 0, Counter[str]()
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("finish_reason", "strategy", "model")}
    for table in tables:
        sums.update(_sums(table, prefix))
        longest = max(longest, pc.max(table[f"{prefix}completion_tokens"]).as_py() or 0)
        for name, count in counts.items():
            count.update(counts_of(table[prefix + name]))
    reasons, strategies, models = map(dict, counts.values())
    failed = reasons.get(FinishReason.ERROR.value, 0)
    return RowStatistics(**sums, longest=longest, failed=failed, finish_reasons=reasons, strategies=strategies,
                         models=models)  # fmt: skip


def _sums(table: pa.Table, prefix: str) -> dict[str, int]:
    columns = {
        "inputs": pc.equal(table[f"{prefix}sample_index"], 0),
        "completion_tokens": table[f"{prefix}completion_tokens"],
        "prompt_tokens": table[f"{prefix}prompt_tokens"],
        "forwards": pc.struct_field(table[f"{prefix}stats"], "decode_forwards"),
    }
    return {"rows": table.num_rows, **{name: pc.sum(column).as_py() or 0 for name, column in columns.items()}}

"""The run record: the settings and input a run was begun with. A continuation has to match them or is an error.

A record is never overwritten: its key holds the writer's epoch, and the latest counts (see :mod:`pipeline.layout`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.codec import StructuredOutputs
from pipeline.commit.retries import Retry, recorded
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, FingerprintError, OutputError
from pipeline.fingerprint import RETRY_SETTINGS
from pipeline.schema import SCHEMA_VERSION, dead_schema, output_schema, result_fields
from pipeline.settings.parsing import Parse, parsed_columns
from pipeline.settings.scoring import score_columns, task_of
from pipeline.settings.tool_calls import TOOL_CALLS_FIELD
from pipeline.storage.protocol import Storage

_OTHER_VERSION = (
    "Its published files are plain tables that any reader opens; to go on with the run use the version it was begun "
    "with, or write to a new folder, or discard it with mode='new'."
)
_LOOKED_AT = 50
"""Folders that are searched for outputs where there is none, for the message."""
_SHOWN = 400
"""Characters of a setting in a message."""
_BY_ID = (
    " Rows whose correction changes the type of a column can be given alone: --retry-failed (retry_failed=True) with "
    "the corrected rows and their row_id as input."
)
_BY_RETRY = (
    f" A retry of failed rows (retry_failed=True) may change {', '.join(RETRY_SETTINGS)}, and read input files with "
    "corrections of failed rows only."
)
_VERSION = 3
"""Version of the record. Those of version 2 are read if they have the fields that came last."""
_LAST_OF_2 = {"base", "partitioned", "whole_numbers"}


@dataclass(frozen=True, kw_only=True)
class FileIdentity:
    """The identity of an input file when a run read it; see :class:`~pipeline.types.SourceFile`.

    Attributes:
        digest, stamp: of its content, and of the file.
        unit: number of the unit that it shares with other small files; None if its units are its own.
        rows: its rows, if it shares a unit; else 0.
        begun: see :class:`~pipeline.types.SourceFile`.
    """

    digest: str
    stamp: str
    unit: int | None = None
    rows: int = 0
    begun: str = ""

    @property
    def first_digest(self) -> str:
        """Digest of the file when the run first read it."""
        return self.begun or self.digest

    def followed_by(self, new: FileIdentity) -> FileIdentity:
        """The identity of the file as it is now."""
        begun = "" if new.digest == self.first_digest else self.first_digest
        return replace(new, unit=self.unit, rows=self.rows, begun=begun)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; those of a shared unit, and of a corrected file, only where there are any."""
        raw = asdict(self)
        named = {name: raw[name] for name in ("digest", "stamp")} if self.unit is None else raw
        return {name: value for name, value in {**named, "begun": self.begun}.items() if name != "begun" or value}


@dataclass(frozen=True, kw_only=True)
class Derived:
    """How an output was made from another one: the command, and the URL of the other one at that time."""

    command: str
    source: str


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The content of a run record.

    Attributes:
        begun: epoch at the begin of the run; files of earlier epochs belong to a discarded run.
        first: first number of its publications and positions; a sleeping writer of a discarded run may still write
            lower ones.
        fingerprint: setting -> plain value, for everything that changes the output.
        unit_rows: input rows per unit; the same for every continuation.
        files: file key -> identity of each source file that the run has read so far.
        columns: schema of the passed-through input columns.
        source_columns: schema of all input columns, where some are not passed on; else None.
        base: the folder that file keys are relative to, without credentials; empty for rows in memory.
        units, rows: size of the input when a run last began.
        scheduled: whether scheduled runs keep this output: then ``files`` are those of the last run only, and the
            watermark (see :mod:`pipeline.commit.lists`) has the others.
        derived: of an output made from another one: the command and the source; None for generated ones. Then
            ``fingerprint`` holds its origin and settings.
        sampled: of a later stage of a chain, how often a number of a sample was added to the id of an input row, with
            ``#`` before it; the same for outputs made from its output.
        retries: retries of failed rows that differed from the run, in the order of their numbers.
    """

    begun: int
    first: int
    fingerprint: Mapping[str, Any]
    unit_rows: int
    files: Mapping[str, FileIdentity]
    columns: pa.Schema
    source_columns: pa.Schema | None = None
    base: str = ""
    units: int = 0
    rows: int = 0
    scheduled: bool = False
    derived: Derived | None = None
    sampled: int = 0
    retries: tuple[Retry, ...] = ()

    @property
    def read_columns(self) -> pa.Schema:
        """Columns of the input, as far as their types are recorded."""
        return self.columns if self.source_columns is None else self.source_columns

    @property
    def fingerprint_hash(self) -> str:
        """Hash of the fingerprint; part of every unit's id."""
        return hashlib.blake2b(json.dumps(self.fingerprint, sort_keys=True).encode(), digest_size=16).hexdigest()

    @property
    def apart(self) -> tuple[int, ...]:
        """Numbers of the retries whose rows are not those of the input, but corrected ones by row id."""
        return tuple(own.number for own in self.retries if own.rows_key)

    @property
    def begun_digests(self) -> dict[str, str]:
        """Key of each input file whose failed rows were corrected -> its first digest."""
        return {key: file.begun for key, file in self.files.items() if file.begun}

    @property
    def input_base(self) -> str | None:
        """The folder that the keys of its files are relative to; None for rows in memory."""
        return self.base or None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the output's rows."""
        settings = self.fingerprint
        structured = settings.get("sampling.structured_outputs")
        parse = {name: Parse(**own) for name, own in settings.get("parse", {}).items()}
        requests = settings.get("input_format") == "openai-batch"  # any of them may ask for all of it
        parsed = parsed_columns(
            parse,
            None if structured is None else StructuredOutputs(**structured),
            per_row=requests or "structured_outputs" in settings["sampling_columns"],
        )
        fields = result_fields(
            token_ids=settings["include_token_ids"],
            logprobs=requests or bool(settings["sampling.logprobs"]) or "logprobs" in settings["sampling_columns"],
            top_logprobs=requests or bool(settings.get("sampling.top_logprobs")),
            reasoning=settings.get("reasoning_parser") is not None,
            messages=settings.get("turns_column") is not None,
            prefix=settings["column_prefix"],
            scores=score_columns(
                task_of(settings.get("task")), label_probabilities=settings.get("label_probabilities", False)
            ),
            parsed=[
                *([] if settings.get("tool_choice") is None else [TOOL_CALLS_FIELD]),
                *(own.field(name) for name, own in parsed.items()),
            ],
        )
        return output_schema(self.columns, fields)

    @property
    def dead_schema(self) -> pa.Schema:
        """Schema of the output's dead letters."""
        return dead_schema(self.columns, self.fingerprint["column_prefix"])

    def save(self, storage: Storage, epoch: int) -> None:
        """Write the record, as the holder of the lease of this epoch."""
        raw = {
            "version": _VERSION,
            "schema_version": SCHEMA_VERSION,
            "begun": self.begun,
            "first": self.first,
            "fingerprint": dict(self.fingerprint),
            "unit_rows": self.unit_rows,
            "base": self.base,
            "units": self.units,
            "rows": self.rows,
            "files": {key: file.to_dict() for key, file in self.files.items()},
            "columns": _hex(self.columns),
            "columns_text": [f"{field.name}: {field.type}" for field in self.columns],
            **({} if self.source_columns is None else {"source_columns": _hex(self.source_columns)}),
            **({"scheduled": True} if self.scheduled else {}),
            **({} if self.derived is None else {"derived": asdict(self.derived)}),
            **({"sampled": self.sampled} if self.sampled else {}),
            **({"retries": [retry.to_dict() for retry in self.retries]} if self.retries else {}),
        }
        storage.put(layout.run_record(epoch), seal(raw))
        storage.delete_objects([key for key in storage.keys(layout.RUN) if layout.epoch_of(key) < epoch])

    @classmethod
    def load(cls, storage: Storage) -> RunState | None:
        """Read the latest record; None if no run was begun.

        Raises:
            DamagedError: it cannot be read; the next run restores it if the ledger agrees with its settings.
            OutputError: written by a version with another schema.
        """
        keys = storage.keys(layout.RUN)
        if not keys:
            return None
        key = max(keys, key=layout.epoch_of)
        try:
            return cls._parse(unseal(read_state(storage, key)), storage.url)
        except FileNotFoundError:
            return cls.load(storage)  # a later one has replaced it
        except (DamagedError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise DamagedError(
                f"{storage.url}/{key}: the run's record is {error}",
                "Run the same command again: it is made again where the ledger agrees with the settings; or discard "
                "the run with mode='new'.",
            ) from error

    @classmethod
    def load_begun(cls, storage: Storage) -> RunState:
        """Read the latest record of an output that has to have one.

        Raises:
            DamagedError: see :meth:`load`.
            OutputError: see :meth:`load`; or no run was begun there. Outputs in folders of it are named.
        """
        if (state := cls.load(storage)) is not None:
            return state
        inside = [name for name in storage.folders()[:_LOOKED_AT] if storage.keys(f"{name}/{layout.RUN}")]
        remedy = f"Outputs are in its folders: {', '.join(inside)}. Name one of them." if inside else "Check the path."
        raise OutputError(f"{storage.url}: no run was begun there. {remedy}")

    @classmethod
    def _parse(cls, raw: Mapping[str, Any], url: str) -> RunState:
        is_read = raw["version"] == _VERSION or (raw["version"] == 2 and raw.keys() >= _LAST_OF_2)
        if not is_read or raw["schema_version"] != SCHEMA_VERSION:
            raise OutputError(
                f"{url}: another version of this package began it (state {raw['version']}, schema "
                f"{raw['schema_version']}; this version writes {_VERSION} and {SCHEMA_VERSION}). {_OTHER_VERSION}"
            )
        return cls(
            begun=raw["begun"],
            first=raw["first"],
            fingerprint=raw["fingerprint"],
            unit_rows=raw["unit_rows"],
            files={key: FileIdentity(**file) for key, file in raw["files"].items()},
            columns=_schema(raw["columns"]),
            source_columns=_schema(raw["source_columns"]) if "source_columns" in raw else None,
            base=raw["base"],
            units=raw["units"],
            rows=raw["rows"],
            scheduled=raw.get("scheduled", False),
            derived=Derived(**raw["derived"]) if "derived" in raw else None,
            sampled=raw.get("sampled", 0),
            retries=tuple(Retry(**own, number=i) for i, own in enumerate(raw.get("retries", ()), start=1)),
        )

    def followed_by(self, new: RunState, url: str) -> RunState:
        """The record of the next scheduled run: these settings, the files and columns of ``new``.

        Raises:
            FingerprintError: a setting differs, or a column is gone or of another type; each difference is named.
        """
        differences = describe_differences(self.fingerprint, new.fingerprint)
        if not pa.schema(list(new.columns)[: len(self.columns)]).equals(pa.schema(list(self.columns))):
            differences.append(f"input columns: was {_names(self.columns)}, is {_names(new.columns)}")
        self._check(differences, url)
        return replace(self, files=new.files, columns=new.columns)

    def continued_by(
        self, new: RunState, url: str, *, retry_failed: bool = False, rows: Retry | None = None
    ) -> RunState:
        """The record of a continuation: this record plus the files that ``new`` adds, and the retry if it is one.

        Args:
            new: the record that these settings and this input would begin.
            url: of the output.
            retry_failed: whether failed rows are done again, so that :data:`RETRY_SETTINGS` may differ, and the
                content of input files. Their rows are to be checked.
            rows: the corrected rows of a retry, if it reads these in place of the input.

        Raises:
            FingerprintError: a setting, the columns, or a file's content differs; each difference is named.
        """
        settings = self.fingerprint
        asked = self._asked(new, rows)
        allowed = retry_failed or any(own.settings == asked.settings for own in self.retries)
        same = asked.settings if allowed else {}
        differences = describe_differences(_without(settings, same), _without(new.fingerprint, same))
        if not new.columns.equals(self.columns):
            differences.append(f"input columns: was {_names(self.columns)}, is {_names(new.columns)}")
        differences += [
            f"input file {key!r}: its content changed"
            for key, file in new.files.items()
            if not retry_failed and self.files.get(key, file).digest != file.digest
        ]
        by_id = retry_failed and not new.columns.equals(self.columns)
        self._check(differences, url, _BY_ID if by_id else "" if retry_failed or not asked else _BY_RETRY)
        files = {key: self.files[key].followed_by(file) if key in self.files else file
                 for key, file in new.files.items()}  # fmt: skip
        retries = recorded(self.retries, asked)
        base = new.base or self.base  # corrected rows have none
        return replace(self, base=base, files={**self.files, **files}, sampled=new.sampled, retries=retries)

    def retry_of(self, new: RunState, rows: Retry | None = None) -> Retry:
        """How a continuation with these settings and this input differs from the run; see :meth:`continued_by`."""
        asked = self._asked(new, rows)
        return next((own for own in self.retries if own.is_like(asked)), asked)

    def _asked(self, new: RunState, rows: Retry | None) -> Retry:
        changed = _retry_settings(self.fingerprint, new.fingerprint)
        return replace(rows or Retry(), settings=changed, files=self._corrected(new.files))

    def _corrected(self, files: Mapping[str, FileIdentity]) -> dict[str, str]:
        """Key of each file whose content has changed since the run began -> its digest now."""
        known = ((key, file.digest, self.files.get(key, file)) for key, file in files.items())
        return {key: digest for key, digest, own in known if digest != own.first_digest}

    def check_generated(self, url: str) -> None:
        """Refuse to go on with an output that was made from another one.

        Raises:
            OutputError: it was.
        """
        if self.derived is not None:
            raise OutputError(
                f"{url}: the rows there were made by `{self.derived.command}` of {self.derived.source}. Write to "
                "another folder, or discard them with mode='new'."
            )

    @staticmethod
    def _check(differences: Sequence[str], url: str, remedy: str = "") -> None:
        if differences:
            raise FingerprintError(
                f"{url} was begun with other settings than these:\n  "
                + "\n  ".join(differences)
                + "\nGo back to them, write to another folder, or discard the output with mode='new'."
                + remedy
            )

    def shared_by(self, shares: Mapping[str, FileIdentity]) -> RunState:
        """The record with the units that small files share."""
        known = {key: replace(file, unit=shares[key].unit, rows=shares[key].rows)
                 for key, file in self.files.items() if key in shares}  # fmt: skip
        return replace(self, files={**self.files, **known})


@dataclass(frozen=True, kw_only=True)
class Origin:
    """``begun``, ``first`` and ``input_base`` of :class:`RunState`.

    The defaults, used if the record is lost, exclude nothing.
    """

    begun: int = 0
    first: int = 0
    input_base: str | None = None

    @classmethod
    def of(cls, storage: Storage) -> Origin:
        """The origin of the run in an output.

        Raises:
            OutputError: written by a version with another schema.
        """
        try:
            state = RunState.load(storage)
        except DamagedError:
            return cls()
        if state is None:
            return cls()
        return cls(begun=state.begun, first=state.first, input_base=state.input_base)


def is_begun(storage: Storage) -> bool:
    """Whether a run was begun in an output, even if its record is lost."""
    return any(storage.keys(kind) for kind in (layout.RUN, layout.LEDGER, layout.PUBLICATIONS))


def is_fresh(storage: Storage) -> bool:
    """Whether an output has nothing of a run, so that there is nothing to recover, repair or discard."""
    kinds = (layout.RUN, layout.LEDGER, layout.PUBLICATIONS, layout.MANIFEST, layout.DISCARDED)
    return not any(map(storage.keys, kinds)) and not any(map(layout.is_publication, storage.folders()))


def _retry_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The values in ``new`` of settings that differ and that a retry may change."""
    new = json.loads(json.dumps(new))
    return {name: new.get(name) for name in RETRY_SETTINGS if old.get(name) != new.get(name)}


def _without(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per setting that differs: its name, the old value and the new one."""
    # Through JSON and back, so that tuples equal the stored lists, and enums the stored text.
    new = json.loads(json.dumps(new))
    absent = "(not set)"
    return [
        "{}: was {}, is {}".format(name, *_apart(repr(old.get(name, absent)), repr(new.get(name, absent))))
        for name in sorted({*old, *new})
        if old.get(name, absent) != new.get(name, absent)
    ]


def _apart(one: str, other: str) -> tuple[str, str]:
    """Two texts; of long ones, such as schemas, the text around their first difference."""
    place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return _around(one, place), _around(other, place)


def _around(text: str, place: int) -> str:
    if len(text) <= _SHOWN:
        return text
    first = max(0, min(place - _SHOWN // 4, len(text) - _SHOWN))
    piece = text[first : first + _SHOWN]
    return f"{'...' * (first > 0)}{piece}{'...' * (first + _SHOWN < len(text))}"


def _names(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"


def _hex(schema: pa.Schema) -> str:
    return schema.serialize().to_pybytes().hex()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))

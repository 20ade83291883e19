"""Snapshots of the index as database files: its records, its revocations and its plan, loaded without parsing them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from pipeline.commit.index.scratch import Scratch

__all__ = ["load_snapshot", "save_snapshot"]

_TABLES, _INDEX = ("records", "revoked"), "records_by_id"
_MASTER = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"


def save_snapshot(scratch: Scratch, path: str, facts: Mapping[str, object]) -> None:
    """Write the index's records, revocations and plan to a new file.

    Args:
        scratch: the index.
        path: of the file.
        facts: plain values, given back by :func:`load_snapshot`.

    Raises:
        OSError: the file cannot be written.
    """
    made = dict(scratch.all(_MASTER))
    statements = ["CREATE TABLE saved.facts AS SELECT ? AS text"]
    for name in _TABLES:
        statements += [_in_saved(made[name]), f"INSERT INTO saved.{name} SELECT * FROM main.{name} ORDER BY rowid"]
    statements.append(_in_saved(made[_INDEX]))  # after the rows: sorting them takes less than inserting in any order
    if "plan" in made and "kept_units" not in made:
        statements += [
            "CREATE TABLE saved.plan AS SELECT * FROM main.plan",
            _in_saved(made["units"], "kept_units"),
            "INSERT INTO saved.kept_units SELECT * FROM main.units ORDER BY idx",
            "UPDATE saved.kept_units SET todo = 0 WHERE todo > 0",
            "CREATE UNIQUE INDEX saved.kept_by_id ON kept_units (unit_id)",
        ]
    try:
        scratch.save(path, statements, (json.dumps(facts),))
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def load_snapshot(scratch: Scratch, path: str) -> dict[str, Any] | None:
    """Make a file that :func:`save_snapshot` wrote the index's database; the file is removed.

    Args:
        scratch: the index; it has to be empty.
        path: of the file.

    Returns:
        The facts; None, and nothing is loaded, if a version with other tables wrote the file.

    Raises:
        OSError: the file cannot be read.
    """
    wanted = dict(scratch.all(_MASTER))
    try:
        with closing(sqlite3.connect(path)) as file:
            found = dict(file.execute(_MASTER).fetchall())
            if any(found.get(name) != _in_saved(wanted[name]).replace("saved.", "") for name in (*_TABLES, _INDEX)):
                return None
            ((text,),) = file.execute("SELECT text FROM facts").fetchall()
        scratch.adopt(path)
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error
    for name, sql in wanted.items():
        if name not in found:
            scratch.run(sql)
    facts: dict[str, Any] = json.loads(text)
    return facts


def _in_saved(sql: str, name: str | None = None) -> str:
    """The statement that makes a table or an index, for the file."""
    before, kind, rest = next(sql.partition(word) for word in ("TABLE ", "INDEX ") if word in sql)
    old, _, more = rest.partition(" ")
    return f"{before}{kind}saved.{name or old} {more}"

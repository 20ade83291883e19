"""Names of everything inside an output folder, once.

The state folder begins with two underscores: Arrow, Spark and Ray skip names with one, Hugging Face
``datasets`` those with two, so plain readers of the whole folder see published data only.
"""

from __future__ import annotations

__all__ = [
    "CRASHES",
    "INPUT",
    "LEASE",
    "LEDGER",
    "MANIFEST",
    "PUBLICATIONS",
    "PUBLISH",
    "RUN",
    "SCRATCH",
    "STAGED",
    "STATE",
    "crash_note",
    "dead_letters",
    "part",
    "publication",
    "publication_record",
    "publishing",
    "staged_dead",
    "staged_rows",
    "time_of_crash_note",
]

STATE = "__wedlm"
RUN = f"{STATE}/run.json"
LEASE = f"{STATE}/lease.json"
MANIFEST = f"{STATE}/manifest.json"
LEDGER = f"{STATE}/ledger"
STAGED = f"{STATE}/staged"
PUBLISH = f"{STATE}/publish"
PUBLICATIONS = f"{STATE}/publications"
SCRATCH = f"{STATE}/tmp"
INPUT = f"{STATE}/input"
CRASHES = f"{STATE}/crashes"


def publication(number: int) -> str:
    """The visible folder of a publication; names sort in the order of publishing."""
    return f"data-{number:06d}"


def publishing(number: int) -> str:
    """Where a publication is assembled before it is given its visible name."""
    return f"{PUBLISH}/{publication(number)}"


def publication_record(number: int) -> str:
    """The record of a publication that is complete and may be made visible."""
    return f"{PUBLICATIONS}/{publication(number)}.json"


def part(number: int) -> str:
    """File name of a part, without its format's suffix; names sort in input order."""
    return f"part-{number:06d}"


def dead_letters(number: int) -> str:
    """Key of the dead-letter table of a publication, without its format's suffix."""
    return f"{STATE}/dead_letters/{publication(number)}"


def staged_rows(unit_id: str) -> str:
    """Key of a unit's generations."""
    return f"{STAGED}/{unit_id}.rows.arrow"


def staged_dead(unit_id: str) -> str:
    """Key of a unit's dead letters; present only where a row failed."""
    return f"{STAGED}/{unit_id}.dead.arrow"


def crash_note(seconds: float, pid: int) -> str:
    """Key of the note that a dying generate actor leaves; ``seconds`` since the epoch."""
    return f"{CRASHES}/{int(seconds * 1000):015d}-{pid}.txt"


def time_of_crash_note(key: str) -> float:
    """When such a note was left, in seconds since the epoch."""
    return int(key.rsplit("/", 1)[-1].split("-", 1)[0]) / 1000

"""Names of everything inside an output folder, once.

The state folder begins with two underscores: Arrow, Spark and Ray skip names with one, Hugging Face
``datasets`` those with two, so plain readers of the whole folder see published data only.
"""

from __future__ import annotations

__all__ = [
    "CRASHES",
    "DEAD_LETTERS",
    "DISCARDED",
    "INPUT",
    "LEASES",
    "LEDGER",
    "MANIFEST",
    "PUBLICATIONS",
    "PUBLISH",
    "RUN",
    "SCRATCH",
    "STAGED",
    "STATE",
    "UNITS",
    "crash_note",
    "dead_letters",
    "lease",
    "named_units",
    "part",
    "publication",
    "publication_record",
    "published_dead_letters",
    "publishing",
    "staged_attempt",
    "staged_dead",
    "staged_rows",
    "time_of_crash_note",
    "units",
]

STATE = "__wedlm"
RUN = f"{STATE}/run.json"
LEASES = f"{STATE}/lease"
MANIFEST = f"{STATE}/manifest.json"
LEDGER = f"{STATE}/ledger"
STAGED = f"{STATE}/staged"
PUBLISH = f"{STATE}/publish"
PUBLICATIONS = f"{STATE}/publications"
SCRATCH = f"{STATE}/tmp"
INPUT = f"{STATE}/input"
CRASHES = f"{STATE}/crashes"
DEAD_LETTERS = f"{STATE}/dead_letters"
DISCARDED = f"{STATE}/discarded"
UNITS = f"{STATE}/units"


def publication(slot: int, revision: int = 0) -> str:
    """The visible folder of a publication or of its revision; names sort in the order of slots."""
    return f"data-{slot:06d}" + (f"-r{revision:03d}" if revision else "")


def lease(epoch: int) -> str:
    """Key of a lease; the one with the highest epoch counts."""
    return f"{LEASES}/{epoch:08d}.json"


def publishing(number: int, token: str) -> str:
    """Where the holder of a lease assembles a publication before it is given its visible name."""
    return f"{PUBLISH}/{publication(number)}.{token}"


def publication_record(number: int, token: str) -> str:
    """The record by which the holder of a lease decides a publication; or the fence in its place."""
    return f"{PUBLICATIONS}/{publication(number)}.{token}.json"


def part(number: int) -> str:
    """File name of a part, without its format's suffix; names sort in input order."""
    return f"part-{number:06d}"


def dead_letters(number: int, token: str) -> str:
    """Key of the dead-letter table of a publication, without its format's suffix."""
    return f"{DEAD_LETTERS}/{publication(number)}.{token}"


def published_dead_letters(name: str) -> str:
    """Key of the dead-letter table that a publication names."""
    return f"{DEAD_LETTERS}/{name}"


def units(number: int, token: str) -> str:
    """Key of the list of a publication's units."""
    return f"{UNITS}/{publication(number)}.{token}.arrow"


def named_units(name: str) -> str:
    """Key of the list of units that a publication names."""
    return f"{UNITS}/{name}"


def staged_rows(unit_id: str, attempt: int = 1, copy: int = 0) -> str:
    """Key of a unit's generations as of an attempt; ``copy`` tells the results of several actors apart."""
    return f"{_staged(unit_id, attempt, copy)}.rows.arrow"


def staged_dead(unit_id: str, attempt: int = 1, copy: int = 0) -> str:
    """Key of a unit's dead letters as of an attempt; present only where a row failed."""
    return f"{_staged(unit_id, attempt, copy)}.dead.arrow"


def _staged(unit_id: str, attempt: int, copy: int) -> str:
    return f"{STAGED}/{unit_id}.{attempt}" + (f".{copy}" if copy else "")


def staged_attempt(key: str) -> tuple[str, int]:
    """The unit and attempt that a staged object belongs to."""
    unit_id, attempt, *_ = key.rsplit("/", 1)[-1].split(".")
    return unit_id, int(attempt)


def crash_note(seconds: float, pid: int) -> str:
    """Key of the note that a dying generate actor leaves; ``seconds`` since the epoch."""
    return f"{CRASHES}/{int(seconds * 1000):015d}-{pid}.txt"


def time_of_crash_note(key: str) -> float:
    """When such a note was left, in seconds since the epoch."""
    return int(key.rsplit("/", 1)[-1].split("-", 1)[0]) / 1000

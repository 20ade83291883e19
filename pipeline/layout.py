"""The names of all files and folders inside an output folder.

The name of the state folder begins with two underscores. Arrow, Spark and Ray skip names with one, Hugging Face
``datasets`` those with two, so plain readers of the whole folder see published data only.

State files are never overwritten: a file's name holds the epoch of its writer's lease, and the file with the highest
epoch counts. So a writer that slept through its lease only touches names that no longer count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STATE = "__wedlm"
RUN = f"{STATE}/run"
LEASES = f"{STATE}/lease"
MANIFEST = f"{STATE}/manifest"
LEDGER = f"{STATE}/ledger"
FENCES = f"{STATE}/fences"
SNAPSHOTS = f"{STATE}/snapshots"
STAGED = f"{STATE}/staged"
PUBLISH = f"{STATE}/publish"
PUBLICATIONS = f"{STATE}/publications"
SCRATCH = f"{STATE}/tmp"
INPUT = f"{STATE}/input"
CRASHES = f"{STATE}/crashes"
DEAD_LETTERS = f"{STATE}/dead_letters"
DISCARDED = f"{STATE}/discards"
USAGE = f"{STATE}/usage"
UNITS = f"{STATE}/units"
INPUTS = f"{STATE}/inputs"
REPORT = f"{STATE}/report"
REPORT_PAGE = f"{STATE}/report.html"
EVALUATION = f"{STATE}/evaluation"
AUDITS = f"{STATE}/audits"

_PUBLICATION = re.compile(r"data-(\d{6,})(-r\d{3,})?")
_PART = re.compile(r"part-\d{6,}(\.\w+)+")


def publication(position: int, revision: int = 0) -> str:
    """The visible folder of a publication or of its revision; names sort in the order of positions."""
    return f"data-{position:06d}" + (f"-r{revision:03d}" if revision else "")


def is_publication(name: str) -> bool:
    """Whether a folder's name is that of a publication."""
    return _PUBLICATION.fullmatch(name) is not None


def position_of(name: str) -> tuple[int, int]:
    """Position and revision in the name of a publication's folder."""
    found = _PUBLICATION.fullmatch(name)
    assert found is not None, "asked of publications only"
    return int(found[1]), int(found[2][2:]) if found[2] else 0


def is_part(name: str) -> bool:
    """Whether a file has the name of a part, in any format."""
    return _PART.fullmatch(name) is not None


def lease(epoch: int) -> str:
    """Key of a lease; the one with the highest epoch counts."""
    return f"{LEASES}/{epoch:08d}.json"


def run_record(epoch: int) -> str:
    """Key of the record of a run."""
    return f"{RUN}/{epoch:08d}.json"


def manifest(epoch: int, number: int) -> str:
    """Key of a manifest; of one epoch the one with the highest number counts, which is the publications' at least."""
    return f"{MANIFEST}/{epoch:08d}-{number:06d}.json"


def count_of(key: str) -> int:
    """The number in the name of a manifest; -1 for other files."""
    found = re.fullmatch(r"\d+-(\d+)\.json", key.rsplit("/", 1)[-1])
    return -1 if found is None else int(found[1])


def usage(epoch: int) -> str:
    """Key of the record of the actors' resource use; the one with the highest epoch counts."""
    return f"{USAGE}/{epoch:08d}.json"


def epoch_of(key: str) -> int:
    """The epoch that the name of a lease, a run's record or a manifest begins with; -1 for other files."""
    found = re.match(r"\d+", key.rsplit("/", 1)[-1])
    return -1 if found is None else int(found[0])


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The parsed name of a ledger segment: the epoch of its writer, and its number among that writer's segments.

    ``writer`` is the epoch and the token of the lease.
    """

    epoch: int
    number: int
    writer: str


def discard_mark(epoch: int) -> str:
    """Key of the mark that begins the discard of an output by the holder of a lease, or of the fence in its place."""
    return f"{DISCARDED}/{epoch:08d}"


def segment(epoch: int, number: int, token: str) -> str:
    """Key of a ledger segment; ``token``: of the lease, should epochs ever come twice."""
    return f"{LEDGER}/{epoch:08d}-{number:08d}-{token[:8]}.jsonl"


def segment_of(key: str) -> Segment | None:
    """Inverse of :func:`segment`; None for a file that has no such name."""
    found = re.fullmatch(r"(\d+)-(\d+)-(\w*)\.jsonl", key.rsplit("/", 1)[-1])
    if found is None:
        return None
    return Segment(epoch=int(found[1]), number=int(found[2]), writer=f"{found[1]}-{found[3]}")


def fence(epoch: int, segments: int) -> str:
    """Key of the fence after the first ``segments`` ledger segments of an epoch: later ones do not count."""
    return f"{FENCES}/{epoch:08d}-{segments:08d}"


def fenced(key: str) -> tuple[int, int] | None:
    """Inverse of :func:`fence`; None for other files."""
    found = re.fullmatch(r"(\d+)-(\d+)", key.rsplit("/", 1)[-1])
    return None if found is None else (int(found[1]), int(found[2]))


def snapshot(epoch: int, entries: int, since: int, sha256: str) -> str:
    """Key of the snapshot of a ledger that the holder of a lease made.

    Args:
        epoch: of the lease.
        entries: of the ledger that it holds.
        since: epoch at the begin of the run.
        sha256: of the snapshot.
    """
    return f"{SNAPSHOTS}/{epoch:08d}-{entries:012d}-{since:08d}-{sha256}.sqlite"


def snapshot_of(key: str) -> tuple[int, str] | None:
    """The epoch of its run's begin, and the SHA-256, in the key of a snapshot; None for other files."""
    found = re.fullmatch(r"\d+-\d+-(\d+)-([0-9a-f]{64})\.sqlite", key.rsplit("/", 1)[-1])
    return None if found is None else (int(found[1]), found[2])


def publishing(number: int, epoch: int) -> str:
    """Folder where the holder of a lease assembles a publication before it gets its visible name."""
    return f"{PUBLISH}/{publication(number)}.{epoch:08d}"


def publication_record(number: int, epoch: int) -> str:
    """Key of the record of the lease's holder that decides a publication, or of the fence in its place."""
    return f"{PUBLICATIONS}/{publication(number)}.{epoch:08d}.json"


def number_of(key: str) -> tuple[int, int]:
    """Number and epoch of the publication that a state key belongs to; (-1, -1) for other files."""
    found = re.search(r"/data-(\d+)\.(\d+)", key)
    return (-1, -1) if found is None else (int(found[1]), int(found[2]))


def part(number: int) -> str:
    """File name of a part, without its format's suffix; names sort in input order."""
    return f"part-{number:06d}"


def dead_letters(number: int, epoch: int) -> str:
    """Key of the dead-letter table of a publication, without its format's suffix."""
    return f"{DEAD_LETTERS}/{publication(number)}.{epoch:08d}"


def units(number: int, epoch: int) -> str:
    """Key of the list of a publication's units."""
    return f"{UNITS}/{publication(number)}.{epoch:08d}.arrow"


def inputs(number: int, epoch: int) -> str:
    """Key of the list of input files that a publication adds to the watermark."""
    return f"{INPUTS}/{publication(number)}.{epoch:08d}.arrow"


def staged_rows(unit_id: str, attempt: int, sha256: str) -> str:
    """Key of a unit's staged output rows as of an attempt; ``sha256`` of the object keeps different contents apart."""
    return f"{STAGED}/{unit_id}.{attempt}.{sha256[:16]}.rows.arrow"


def staged_dead(unit_id: str, attempt: int, sha256: str) -> str:
    """Key of a unit's staged dead letters as of an attempt; only written if a row failed."""
    return f"{STAGED}/{unit_id}.{attempt}.{sha256[:16]}.dead.arrow"


def staged_attempt(key: str) -> tuple[str, int]:
    """The unit and attempt that a staged object belongs to."""
    unit_id, attempt, *_ = key.rsplit("/", 1)[-1].split(".")
    return unit_id, int(attempt)


def crash_note(seconds: float, pid: int) -> str:
    """Key of the note that a dying generate actor leaves; ``seconds`` since 1970."""
    return f"{CRASHES}/{int(seconds * 1000):015d}-{pid}.txt"


def time_of_crash_note(key: str) -> float:
    """Time of a crash note, in seconds since 1970."""
    return int(key.rsplit("/", 1)[-1].split("-", 1)[0]) / 1000


def part_aggregate(sha256: str) -> str:
    """Key of the aggregate of a published part's rows; ``sha256``: of the part."""
    return f"{REPORT}/parts/{sha256}.json"


def session(epoch: int) -> str:
    """Key of the record of how a run went, for the report."""
    return f"{REPORT}/sessions/{epoch:08d}.json"


def traces(epoch: int) -> str:
    """Key of the traces of sampled rows that the holder of a lease made; those of the highest epoch count."""
    return f"{REPORT}/traces/{epoch:08d}.json"

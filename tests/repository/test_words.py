"""The code speaks the field's words: project-own words that were replaced do not come back.

Two tables. A word of ``RETIRED`` may occur nowhere, neither in prose nor as a part of an identifier. The words of
``RETIRED_NAMES`` are ordinary English and may occur in prose and as local names; no function, class or attribute may be
named so.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from testing.repository import ROOT

ROOTS = ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs", "testing", "tests", "benchmarks")
SKIPPED = ("benchmarks/results/", "tests/repository/test_words.py")
NAMED_ROOTS = ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs", "testing")
"""Where names are searched too."""
ALLOWED: Mapping[str, frozenset[str]] = {
    "testing/toy/": frozenset({"tally"}),
    "benchmarks/records.py": frozenset({"allotment", "planner"}),
}
"""Path -> words that may stand there: a family of toy problems, names of stored runs."""

RETIRED: Mapping[str, str] = {
    **dict.fromkeys(("airborne",), "in flight, async"),
    **dict.fromkeys(("allot", "allots", "allotted", "allotment", "allotments"), "allocate, allocation"),
    **dict.fromkeys(("bury", "buries", "buried"), "record_death"),
    **dict.fromkeys(("frugal", "frugality"), "cheapest near-optimal"),
    **dict.fromkeys(("honesty",), "gain calibration"),
    **dict.fromkeys(("landed",), "completed"),
    **dict.fromkeys(("lookahead", "lookaheads"), "prefix queue, prefetch"),
    **dict.fromkeys(("mend", "mends", "mended", "mending"), "fix, correct, repair"),
    **dict.fromkeys(("newcomer", "newcomers"), "new unit, new sequence"),
    **dict.fromkeys(("planner", "planners"), "drafting, controller"),
    **dict.fromkeys(("rival", "rivals"), "arm, baseline"),
    **dict.fromkeys(("sketch", "sketches", "sketched"), "prefix histogram"),
    **dict.fromkeys(("survival", "survivals"), "acceptance"),
    **dict.fromkeys(("tally", "tallies", "tallied"), "crash bisection, count"),
}
"""Word -> its replacement."""

RETIRED_NAMES: Mapping[str, str] = {
    "company": "concurrent_units",
    "doubled": "backup, duplicated",
    "gathering": "drain",
    "look_ahead": "prefetch",
    "ran": "record_forward",
    "together": "drain, merged",
    "told": "observed",
    "took": "elapsed, record_host_time",
}
"""Name (or parts of one, joined by underscores) -> its replacement."""

_MAY_NAME = re.compile(rf"(?:\b(?:def|class) |\.|^ +)\w*?(?:{'|'.join(RETIRED_NAMES).replace('_', '_?')})", re.I | re.M)
"""Where a retired name may be defined: only such files are parsed."""
_WORD = re.compile(r"[A-Za-z]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Parts of an identifier: ``RemoteTally`` has two, ``num_rows`` too."""


def parts(text: str) -> list[str]:
    """The words of a text or identifier in lower case, in order."""
    return [part.lower() for word in _WORD.findall(text) for part in _PART.findall(word)]


def retired_words(line: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """The retired words in a line of code or prose."""
    if not _may_have(line):
        return []
    return [part for part in parts(line) if part in RETIRED and part not in allowed]


def _may_have(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in RETIRED)


def allowed_in(path: Path) -> frozenset[str]:
    """Retired words that a file may use."""
    name = path.relative_to(ROOT).as_posix()
    return frozenset().union(*(words for folder, words in ALLOWED.items() if name.startswith(folder)))


def retired_name(name: str) -> str | None:
    """The retired name that ``name`` is or contains."""
    own = f"_{'_'.join(parts(name))}_"
    return next((retired for retired in RETIRED_NAMES if f"_{retired}_" in own), None)


def definitions(source: str) -> Iterator[tuple[int, str]]:
    """``(line, name)`` of every function, class, field and attribute that a module defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.lineno, line.target.id


def tracked(root: str) -> list[Path]:
    """The tracked Python and Markdown files below a folder, those not searched left out."""
    listed = subprocess.run(["git", "ls-files", root], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if name.endswith((".py", ".md"))]
    return [ROOT / name for name in names if not name.startswith(SKIPPED) and (ROOT / name).is_file()]


@pytest.mark.parametrize("root", ROOTS)
def test_no_retired_word_is_written(root: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}, write: {RETIRED[word]}"
        for path in tracked(root)
        if _may_have(text := path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1)
        for word in retired_words(line, allowed_in(path))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("root", NAMED_ROOTS)
def test_nothing_has_a_retired_name(root: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name!r}, call it: {RETIRED_NAMES[retired]}"
        for path in tracked(root)
        if path.suffix == ".py" and _MAY_NAME.search(source := path.read_text(encoding="utf-8"))
        for line, name in definitions(source)
        if (retired := retired_name(name)) is not None
    ]
    assert not found, "\n" + "\n".join(found)


def test_words_are_found_as_parts_of_identifiers_and_not_inside_other_words() -> None:
    assert retired_words("class RemoteTally: start_tally(TALLY, tallyho)") == ["tally", "tally", "tally"]
    assert retired_words("recommend, amend, accompany; the end of a shallot") == []
    assert [retired_name(name) for name in ("took", "_took_s", "lookAhead", "overtook", "look_aheads")] == [
        "took", "took", "look_ahead", None, None,
    ]  # fmt: skip
    assert list(definitions("class C:\n ran: int\n def f(self, took): self.told = 1")) == [
        (1, "C"), (2, "ran"), (3, "f"), (3, "told"),
    ]  # fmt: skip

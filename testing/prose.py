"""Constructions that make sentences hard to read, counted per 10,000 words of prose.

    python -m testing.prose                 # one table, by package
    python -m testing.prose what docs jobs  # where a construction stands

Prose is the text of Markdown pages outside of code, and docstrings, comments and message strings of Python files.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("docs", "wedlm_core", "pipeline", "jobs", "wedlm_batch", "wedlm_base", "testing", "tests", "benchmarks",
            "infra")  # fmt: skip
_DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LEFT_OUT = ("benchmarks/results/", "testing/prose.py", "tests/repository/test_prose.py")
_OUT = re.compile(r"```.*?```|<!--.*?-->|^#.*?$", re.MULTILINE | re.DOTALL)
"""Parts of a page that are no prose: code, comments, headings."""
_PREPOSITIONS = "of|in|on|at|by|to|from|for|with|behind|after|before|through|over|under|about|against|within|than"
_PRONOUNS = "its?|itself|they|them|theirs?|this|these|that|those|ones?|none|which|who|whose|whom|what|such"
_MOST_PRONOUNS = 5


def _pattern(expression: str) -> Callable[[str], int]:
    compiled = re.compile(expression, re.IGNORECASE)
    return lambda sentence: len(compiled.findall(sentence))


def _what(sentence: str) -> int:
    return 0 if sentence.endswith("?") else len(re.findall(r"\bwhat\b", sentence, re.IGNORECASE))


def _many_pronouns(sentence: str) -> int:
    return int(len(re.findall(rf"\b(?:{_PRONOUNS})\b", sentence, re.IGNORECASE)) >= _MOST_PRONOUNS)


def _that_of_twice(sentence: str) -> int:
    return int(len(re.findall(r"\b(?:that|those) of\b", sentence, re.IGNORECASE)) >= 2)


CONSTRUCTIONS: Mapping[str, Callable[[str], int]] = {
    "behind": _pattern(r"\bbehind\b"),
    "what": _what,
    "which": _pattern(rf"\b(?:{_PREPOSITIONS}) which\b"),
    "pronouns": _many_pronouns,
    "that of": _that_of_twice,
    "beside": _pattern(r"\bbeside\b"),
    "anew": _pattern(r"\b(?:anew|alike|likewise)\b"),
    "dear": _pattern(r"\bdear(?:er|est|ly)?\b"),
    "tell of": _pattern(r"\btells? of\b"),
    "nobody": _pattern(r"\b(?:nobody|no one)\b"),
    "set phrase": _pattern(r"\b(?:it is to|there is one|the one that|such that|all the same)\b"),
}
"""Name -> number of places in a sentence."""


def prose_of(path: Path) -> Iterator[str]:
    """Paragraphs of a Markdown page, or docstrings, blocks of comments and messages of a Python file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from re.split(r"\n\s*\n|\n(?=\s*[-*|#])|\|", _OUT.sub("", text))
        return
    yield from _strings(text)
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("#: "))
        elif block and token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield " ".join(block)
            block = []


def _strings(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield from re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\w+:) )", node.value)


def sentences(paragraph: str) -> Iterator[str]:
    """Sentences without code spans and addresses of links."""
    plain = re.sub(r"``.*?``|`[^`]*`|\]\([^)]*\)|:\w+:`[^`]*`", " ", paragraph, flags=re.DOTALL)
    for sentence in re.split(r"(?<=[.?!;])\s+", " ".join(plain.split())):
        if re.search(r"[a-z]{2}", sentence):
            yield sentence


def files_of(package: str) -> list[Path]:
    """Tracked pages and Python files of a package; those of ``docs`` include the pages at the root."""
    named = [package, *_DOCS] if package == "docs" else [package]
    listed = subprocess.run(["git", "ls-files", *named], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if name.endswith((".py", ".md"))]
    return [ROOT / name for name in names if not name.startswith(_LEFT_OUT) and (ROOT / name).is_file()]


def found_in(package: str, construction: str) -> Iterator[tuple[Path, str]]:
    """Each sentence of a package that has a construction, with its file."""
    count = CONSTRUCTIONS[construction]
    for path in files_of(package):
        for paragraph in prose_of(path):
            yield from ((path, sentence) for sentence in sentences(paragraph) if count(sentence))


def counts(package: str) -> tuple[int, dict[str, int]]:
    """Number of words of a package's prose, and of each construction in it."""
    words, found = 0, dict.fromkeys(CONSTRUCTIONS, 0)
    for path in files_of(package):
        for paragraph in prose_of(path):
            for sentence in sentences(paragraph):
                words += len(sentence.split())
                for name, count in CONSTRUCTIONS.items():
                    found[name] += count(sentence)
    return words, found


def main(argv: Sequence[str]) -> None:
    """Print the table, or the places of one construction."""
    if argv:
        for package in argv[1:] or PACKAGES:
            for path, sentence in found_in(package, argv[0]):
                print(f"{path.relative_to(ROOT)}: {sentence[:200]}")
        return
    print(f"{'':12}{'words':>8}" + "".join(f"{name:>11}" for name in CONSTRUCTIONS))
    for package in PACKAGES:
        words, found = counts(package)
        print(f"{package:12}{words:8}" + "".join(f"{10_000 * count / words:11.1f}" for count in found.values()))


if __name__ == "__main__":
    main(sys.argv[1:])

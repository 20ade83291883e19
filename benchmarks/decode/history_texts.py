"""Rows with prompts and outputs for :mod:`benchmarks.decode.history_drafts`: real text, and texts made of it."""

from __future__ import annotations

import ast
import inspect
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np

__all__ = ["WORKLOADS", "Row", "Vocabulary"]

# As the tokenizers of large models cut text before they merge pieces: words with their space, single digits.
_TOKEN = re.compile(r" ?[A-Za-z]+|\d|\s|[^\sA-Za-z\d]")
_SENTENCE = re.compile(r"[^.]+\.")
_PASSAGE = (120, 500)  # characters of a paragraph
_MODULES = ("argparse", "ast", "asyncio.base_events", "datetime", "decimal", "inspect", "logging", "pathlib",
            "subprocess", "tarfile", "threading", "typing", "zipfile")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prompt and the output that a perfect verifier insists on, as int32 token ids."""

    prompt: np.ndarray[tuple[int], np.dtype[np.int32]]
    output: np.ndarray[tuple[int], np.dtype[np.int32]]


class Vocabulary:
    """Token ids by first use; the id 0 ends each output."""

    def __init__(self) -> None:
        self._ids = {"": 0}

    def encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Token ids of a text."""
        return np.array([self._ids.setdefault(t, len(self._ids)) for t in _TOKEN.findall(text)], dtype=np.int32)

    def row(self, prompt: str, output: str) -> Row:
        """Both encoded, the output with its end."""
        return Row(prompt=self.encode(prompt), output=np.append(self.encode(output), np.int32(0)))


def _passages() -> list[str]:
    """Paragraphs of English from the language reference that the standard library ships."""
    paragraphs = [" ".join(p.split()) for text in topics.topics.values() for p in text.split("\n\n")]
    return list(dict.fromkeys(p for p in paragraphs if _PASSAGE[0] <= len(p) and p[0].isupper() and p.endswith(".")))


def _functions() -> list[str]:
    """Functions and methods of the standard library, as source."""
    found = []
    for name in _MODULES:
        module = __import__(name, fromlist=["_"])
        source = inspect.getsource(module)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and 8 <= (node.end_lineno or 0) - node.lineno <= 60:
                found.append("".join(source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]))
    return found


def _copying(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Correct a text: three paragraphs come back with one word in fifty changed."""
    passages = _passages()
    words = sorted({w for p in passages for w in p.split()})
    while True:
        text = " ".join(draw.sample(passages, 3)).split(" ")
        yield (
            "Correct this text:\n" + " ".join(text),
            " ".join(draw.choice(words) if draw.random() < 0.02 else w for w in text),
        )


def _summarising(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Sentences of a text of eight paragraphs, in other order, joined by words of one's own."""
    passages = _passages()
    links = ("It also says that", "In addition,", "The text notes:", "Moreover,", "Finally,")
    while True:
        text = " ".join(draw.sample(passages, 8))
        picked = draw.sample(_SENTENCE.findall(text), 4)
        yield f"{text}\nSummarise this.", "".join(f"{draw.choice(links)}{sentence} " for sentence in picked)


def _editing(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Rename a variable in a function."""
    functions = _functions()
    while True:
        source = draw.choice(functions)
        names = sorted(set(re.findall(r"\b[a-z_]{3,}\b", source)))
        old, new = draw.choice(names), draw.choice(("value", "item", "other", "result"))
        yield f"Rename {old} to {new}:\n{source}", re.sub(rf"\b{old}\b", new, source)


def _templates(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Records of one form with values drawn anew, half of which the prompt tells."""
    words = sorted({w for p in _passages() for w in re.findall(r"[a-z]{4,}", p)})

    def value() -> str:
        return " ".join(draw.sample(words, draw.randint(1, 3)))

    while True:
        name, city, job, age = value(), value(), value(), draw.randrange(5, 120)
        record = {
            "full_name": name, "place_of_residence": {"city": city, "country": value()}, "age_in_years": age,
            "occupation": job, "is_customer": draw.random() < 0.5, "satisfaction_score": draw.randrange(100),
            "remarks": [value() for _ in range(draw.randint(0, 3))],
        }  # fmt: skip
        yield f"{name}, a {job} from {city}, is {age} years old.", json.dumps(record, indent=1)


def _prose(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """English: a paragraph goes on from its first sentence. Each is seen once."""
    passages = _passages()
    draw.shuffle(passages)
    for text in passages:
        begin = text.index(".") + 1
        if len(text) - begin > 100:
            yield text[:begin], text[begin:]


def _code(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Python: a function goes on from its first line. Each is seen once."""
    functions = list(dict.fromkeys(_functions()))
    draw.shuffle(functions)
    for source in functions:
        head, _, body = source.partition("\n")
        yield head + "\n", body


def _gsm8k(draw: random.Random, gsm8k: Path) -> Iterator[tuple[str, str]]:
    """Human answers to word problems of arithmetic. Each is seen once; none without the file."""
    for text in gsm8k.read_text(encoding="utf-8").splitlines() if gsm8k.is_file() else []:
        found = json.loads(text)
        yield found["question"] + "\n", found["answer"]


WORKLOADS: Mapping[str, Callable[[random.Random, Path], Iterator[tuple[str, str]]]] = {
    "copying": _copying,
    "editing": _editing,
    "summarising": _summarising,
    "templates": _templates,
    "gsm8k": _gsm8k,
    "code": _code,
    "prose": _prose,
}
"""Pairs of prompt and output, from a generator of random numbers and the path of the GSM8K file."""

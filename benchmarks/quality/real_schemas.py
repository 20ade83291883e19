"""How many schemas of a folder compile, and whether their grammars take their valid instances and no invalid ones.

    python -m benchmarks.quality.real_schemas FOLDER --name maskbench

The folder holds JSON files, each of one case or a list of cases: ``{"schema": ..., "tests": [{"valid": true, "data":
...}]}``. MaskBench's ``data`` and the tests of JSON-Schema-Test-Suite are such. Neither is part of this repository.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.common import positive, table, write_result
from benchmarks.quality.spelling import ORDER, OTHER, in_order, reason_of_refusal, takes, without_siblings
from wedlm_core.errors import RequestError
from wedlm_core.grammar import GrammarCompiler
from wedlm_core.model.sources import resolve
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

_MOST_NAMES = 20
_OLD = re.compile(r"draft-0[467]")  # drafts that ignore keywords next to $ref
_WHOLE = re.compile(r"structured_outputs\.json#[^=]*?/([^/=]+)=", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schema with instances: whether each is valid, and its value."""

    name: str
    schema: Any
    instances: tuple[tuple[bool, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case's outcome.

    Attributes:
        name: the case's.
        refusal: why the schema is refused, in a few words; None if it compiles.
        seconds: to compile, or to refuse.
        valid, invalid: instances that were tried.
        refused: reasons why valid instances are no outputs, and how many.
        allowed: invalid instances that are outputs.
    """

    name: str
    refusal: str | None
    seconds: float
    valid: int = 0
    invalid: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    allowed: int = 0


def cases(folder: Path) -> Iterator[Case]:
    """The cases of all JSON files below a folder, in order."""
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for number, case in enumerate(content if isinstance(content, list) else [content]):
            if isinstance(case, dict) and "schema" in case:
                tests = [(bool(test["valid"]), test["data"]) for test in case.get("tests", ())]
                yield Case(name=f"{path.relative_to(folder)} {number}", schema=case["schema"], instances=tuple(tests))


@cache
def _tools() -> tuple[Tokenizer, GrammarCompiler]:
    tokenizer = Tokenizer.load(resolve("tiny"))
    return tokenizer, GrammarCompiler(tokenizer.to_json(), tokenizer.vocab_size, (2,))


def judge(case: Case) -> Outcome:
    """Compile a schema as an engine would, and try its instances."""
    tokenizer, compiler = _tools()
    begin = time.perf_counter()
    try:
        grammar = compiler.compile(StructuredOutputs(json=case.schema))
    except RequestError as error:
        return Outcome(name=case.name, refusal=_class(str(error)), seconds=time.perf_counter() - begin)
    seconds, refused, allowed = time.perf_counter() - begin, Counter[str](), 0
    for valid, value in case.instances:
        taken = takes(grammar.matcher, tokenizer.encode, value)
        allowed += taken and not valid
        if valid and not taken:
            refused[_reason(case.schema, grammar.matcher, value)] += 1
    count = sum(valid for valid, _ in case.instances)
    return Outcome(name=case.name, refusal=None, seconds=seconds, valid=count, invalid=len(case.instances) - count,
                   refused=dict(refused), allowed=allowed)  # fmt: skip


def _reason(schema: Any, matcher: Any, value: Any) -> str:
    """Why a valid value is no output; ``other`` if nothing was found."""
    tokenizer, compiler = _tools()
    if takes(matcher, tokenizer.encode, in_order(value, schema)):
        return ORDER
    reason = reason_of_refusal(matcher, tokenizer.encode, value)
    if reason != OTHER or not _OLD.search(str(schema.get("$schema", "") if isinstance(schema, dict) else "")):
        return reason
    bare = without_siblings(schema)
    try:
        wider = compiler.compile(StructuredOutputs(json=bare)).matcher
    except RequestError:
        return OTHER
    taken = takes(wider, tokenizer.encode, value) or _reason(bare, wider, value) != OTHER if bare != schema else False
    return "keywords next to $ref" if taken else OTHER


def _class(message: str) -> str:
    """The keyword and the rule of a refusal, without the value."""
    found = _WHOLE.match(message)
    keyword = found[1] if found else ""
    if "cannot be compiled (" in message:
        return "backend: " + re.sub(r"[\"'/].*", "", message.partition("cannot be compiled (")[2])[:60].strip()
    if any(text in message for text in ("nearly", "its value is a schema", "without a keyword")):
        return "no keyword: a typing error, or a schema in the wrong place"
    return (
        f"{keyword or 'schema'}: {message.rpartition(': ')[2][:60]}" if keyword != "format" else "format: another one"
    )


def report(outcomes: Sequence[Outcome]) -> str:
    """Counts as Markdown: compiled, refused by reason, instances by outcome."""
    compiled = [outcome for outcome in outcomes if outcome.refusal is None]
    seconds = sorted(outcome.seconds for outcome in outcomes)
    reasons = sum((Counter(outcome.refused) for outcome in compiled), Counter[str]())
    rows: list[tuple[str, object]] = [
        ("schemas", len(outcomes)),
        ("compiled", f"{len(compiled)} ({len(compiled) / max(len(outcomes), 1):.1%})"),
        ("seconds to compile or to refuse: median, longest", f"{seconds[len(seconds) // 2]:.4f}, {seconds[-1]:.2f}"),
        ("invalid instances", sum(outcome.invalid for outcome in compiled)),
        ("invalid instances that are outputs", sum(outcome.allowed for outcome in compiled)),
        ("valid instances", sum(outcome.valid for outcome in compiled)),
        *((f"valid instances that are no outputs: {reason}", count) for reason, count in reasons.most_common()),
    ]
    refusals = Counter(outcome.refusal for outcome in outcomes if outcome.refusal is not None)
    wrong = [outcome.name for outcome in compiled if outcome.allowed]
    other = [outcome.name for outcome in compiled if OTHER in outcome.refused]
    return "\n\n".join(
        (
            table(("", "count"), rows),
            "Schemas refused, by reason:",
            table(("reason", "schemas"), refusals.most_common(60)),
            f"Schemas that allow an invalid instance: {_named(wrong)}.",
            f"Schemas that refuse a valid instance for another reason: {_named(other)}.",
        )
    )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "none") + more


def _judged(found: Iterable[Case], processes: int) -> list[Outcome]:
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(judge, found, chunksize=16))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="JSON files with schemas and instances")
    parser.add_argument("--name", required=True, help="of the suite, for the name of the results file")
    parser.add_argument("--processes", type=positive, default=1)
    given = parser.parse_args()
    body = report(_judged(cases(given.folder), given.processes))
    command = f"python -m benchmarks.quality.real_schemas FOLDER --name {given.name}"
    write_result(f"schemas-{given.name}", f"Real schemas: {given.name}", command, body)


if __name__ == "__main__":
    _main()

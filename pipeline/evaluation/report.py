"""The report of an evaluation: tables for people, and the same figures as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.evaluation.intervals import Interval, mean_of_shares
from pipeline.evaluation.results import OUTCOMES, Counts, Result

__all__ = ["markdown", "plain"]

_MOST_GROUPS = 60


def markdown(results: Sequence[Result], facts: Mapping[str, Any], confidence: float) -> str:
    """Accuracies first, then what they cost, the differences, the parts of the data sets, and how it was done."""
    parts = [
        [f"# Evaluation of {facts['model']}", ""],
        _accuracies(results, confidence),
        _costs(results),
        _differences(results, str(facts["baseline"]), confidence),
        _groups(results, confidence),
        _how(facts, confidence),
    ]
    return "\n".join(line for part in parts for line in part)


def _accuracies(results: Sequence[Result], confidence: float) -> list[str]:
    tasks, settings = _names(results)
    found = {(result.task, result.setting): result.counts for result in results}
    rows = [[task, str(found[task, settings[0]].questions),
             *(_share(found[task, name].accuracy(confidence)) for name in settings)] for task in tasks]  # fmt: skip
    if len(tasks) > 1:
        means = [
            mean_of_shares([(found[t, name].count("correct"), found[t, name].judged) for t in tasks], confidence)
            for name in settings
        ]
        rows.append(["**mean of tasks**", "", *map(_share, means)])
    head = f"Accuracy in percent, with intervals of {confidence:.0%} confidence (Wilson; of the mean: Jeffreys)."
    return [head, "", *_table(["task", "questions", *settings], rows), ""]


def _costs(results: Sequence[Result]) -> list[str]:
    rows = []
    for result in results:
        counts, speed = result.counts, result.tokens_per_second
        rows.append([result.task, result.setting, f"{counts.tokens_per_forward:.2f}",
                     f"{counts.prefix_cacheability:.2f}", "-" if speed is None else f"{speed:.0f}",
                     str(counts.tokens), str(counts.truncated),
                     *(str(counts.count(outcome)) for outcome in OUTCOMES)])  # fmt: skip
    head = ["task", "setting", "tokens/forward", "p_cache", "tokens/s", "tokens", "at the limit", *OUTCOMES]
    return ["## Decoding and outcomes", "", *_table(head, rows), ""]


def _differences(results: Sequence[Result], baseline: str, confidence: float) -> list[str]:
    rows = []
    for result in results:
        if (found := result.comparison) is None:
            continue
        one = found.difference
        rows.append([result.task, result.setting, _points(one.interval), str(one.first_only), str(one.second_only),
                     f"{found.equal_tokens} of {found.questions}"])  # fmt: skip
    if not rows:
        return []
    about = (
        f"Percentage points over {baseline}, question by question, with intervals of {confidence:.0%} confidence "
        "(paired bootstrap); questions that only one of the two answered correctly; and generations with the very same "
        "tokens."
    )
    head = ["task", "setting", "difference", f"only {baseline}", "only this", "equal tokens"]
    return [f"## Differences from {baseline}", "", about, "", *_table(head, rows), ""]


def _groups(results: Sequence[Result], confidence: float) -> list[str]:
    lines = []
    for task in _names(results)[0]:
        own = [result for result in results if result.task == task]
        names = sorted({name for result in own for name in result.groups})
        if len(names) < 2:
            continue
        shown = names[:_MOST_GROUPS]
        rows = [[name, str(own[0].groups.get(name, Counts()).questions),
                 *(_share(result.groups.get(name, Counts()).accuracy(confidence)) for result in own)]
                for name in shown]  # fmt: skip
        lines += [f"## {task} by part", "", *_table(["part", "questions", *(r.setting for r in own)], rows), ""]
        if len(names) > len(shown):
            lines += [f"{len(names) - len(shown)} more parts are in the samples.", ""]
    return lines


def _how(facts: Mapping[str, Any], confidence: float) -> list[str]:
    chat = "on" if facts["chat"] else "off"
    lines = ["## How", ""]
    lines += [f"Model {facts['model']}, seed {facts['seed']}, chat template {chat}, actors: {facts['actors']}."]
    rows = [[name, one["task"], str(one["input"]), f"{one['shots']}{' (given)' if one['own examples'] else ''}",
             str(one["sampling"]["max_tokens"]), f"{one['sampling']['temperature']:g}",
             "all" if one["limit"] is None else str(one["limit"])]
            for name, one in facts["tasks"].items()]  # fmt: skip
    lines += ["", *_table(["name", "task", "input", "shots", "max tokens", "temperature", "rows"], rows), ""]
    settings = [[name, ", ".join(f"{k}={v}" for k, v in values.items())] for name, values in facts["settings"].items()]
    lines += [*_table(["setting", "sampling"], settings), ""]
    lines += ["A question that nothing was generated for (failed), or in whose text no answer was found, counts as not "
              "correct. One that the data set has no answer to (unjudged) does not count.", ""]  # fmt: skip
    if facts["sandbox"]:
        lines += [f"Programs ran in a sandbox; barriers that stood: {', '.join(facts['sandbox'])}.", ""]
    return lines


def plain(results: Sequence[Result], facts: Mapping[str, Any], confidence: float) -> dict[str, Any]:
    """The figures as JSON takes them; what is no number is null."""
    return {"facts": dict(facts), "results": [_plain_result(result, confidence) for result in results]}


def _plain_result(result: Result, confidence: float) -> dict[str, Any]:
    comparison = None if result.comparison is None else dataclasses.asdict(result.comparison)
    return {
        "task": result.task,
        "setting": result.setting,
        **_plain_counts(result.counts, confidence),
        "tokens_per_second": result.tokens_per_second,
        "groups": {name: _plain_counts(counts, confidence) for name, counts in result.groups.items()},
        "comparison": comparison and _finite(comparison),
    }


def _plain_counts(counts: Counts, confidence: float) -> dict[str, Any]:
    return {
        "questions": counts.questions,
        "judged": counts.judged,
        "outcomes": {name: counts.count(name) for name in OUTCOMES},
        "accuracy": _finite(dataclasses.asdict(counts.accuracy(confidence))),
        "tokens": counts.tokens,
        "tokens_per_forward": counts.tokens_per_forward,
        "prefix_cacheability": counts.prefix_cacheability,
        "at_the_limit": counts.truncated,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _names(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(r.task for r in results)), list(dict.fromkeys(r.setting for r in results))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _share(found: Interval) -> str:
    if math.isnan(found.value):
        return "-"
    return f"{100 * found.value:.2f} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _points(found: Interval) -> str:
    if math.isnan(found.value):
        return "-"
    return f"{100 * found.value:+.2f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"

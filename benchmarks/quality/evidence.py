"""Does evidence tell good rows from bad? ``python -m benchmarks.quality.evidence --folder F``.

Generates for hard tasks (once; a re-run finds the outputs in the folder), grades every score on one split, and reports
all of them on the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import table, write_result
from benchmarks.quality.effect import SCORES, BestHalf, BestOfFour, Graded, best_half, best_of_four, graded
from benchmarks.quality.generations import GREEDY, SAMPLED, generate, output_of
from benchmarks.quality.intervals import Interval, wilson
from benchmarks.quality.tasks import FAMILIES
from pipeline.selection.settings import DEFAULT_SAMPLE_SCORE, DEFAULT_SCORE

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one score is worth on one group and split."""

    half: BestHalf
    half_of_families: BestHalf
    of_four: dict[str, BestOfFour]

    @property
    def halves(self) -> list[float]:
        """Accuracy of the best half, of all and of each family."""
        return [self.half.kept.value, self.half_of_families.kept.value]

    @property
    def samples(self) -> list[float]:
        """Accuracy of the best of four."""
        return [best.kept.value for best in self.of_four.values()]


def _effects(folder: Path, group: str, split: str) -> tuple[dict[str, Graded], dict[str, Effect]]:
    outputs = {name: output_of(folder, group, split, name) for name in (GREEDY, *SAMPLED)}
    truth = {name: graded(output) for name, output in outputs.items()}
    effects = {}
    for name in SCORES:
        effects[name] = Effect(
            half=best_half(outputs[GREEDY], name, truth[GREEDY], by_family=False),
            half_of_families=best_half(outputs[GREEDY], name, truth[GREEDY], by_family=True),
            of_four={at: best_of_four(outputs[at], name, truth[at], truth[GREEDY]) for at in SAMPLED},
        )
    return truth, effects


def _chosen(folder: Path) -> str:
    """The tables of the split by which the defaults were chosen."""
    groups = {group: _effects(folder, group, "choice")[1] for group in FAMILIES}
    halves, samples = ("half", "half by family"), [f"1 of 4 at {at}" for at in SAMPLED]
    return "\n\n".join((
        _ranking(groups, halves, lambda effect: effect.halves),
        _ranking(groups, samples, lambda effect: effect.samples),
    ))  # fmt: skip


def _ranking(
    groups: Mapping[str, Mapping[str, Effect]], kinds: Sequence[str], read: Callable[[Effect], list[float]]
) -> str:
    rows = []
    for name in SCORES:
        values = [value for effects in groups.values() for value in read(effects[name])]
        rows.append((name, *(f"{100 * value:.1f}" for value in values), f"**{100 * sum(values) / len(values):.2f}**"))
    rows.sort(key=lambda row: row[-1], reverse=True)
    return table(("score", *(f"{group}: {kind}" for group in groups for kind in kinds), "mean"), rows)


def _base(truth: dict[str, Graded]) -> str:
    count = len(truth[GREEDY].family_P)
    greedy = wilson(int(truth[GREEDY].right_PS.sum()), count)
    rows: list[tuple[str, str, str]] = [("greedy", greedy.percent(), "")]
    for name in SAMPLED:
        right_PS = truth[name].right_PS
        oracle = wilson(int(right_PS.any(axis=1).sum()), count).percent()
        rows.append((f"one sample at temperature {name}", f"{100 * right_PS.mean():.1f}", oracle))
    return table(("", "right, %", "any of the four right, %"), rows)


def _halves(effects: dict[str, Effect]) -> str:
    rows = [
        (name, e.half.kept.percent(), e.half.gain.percent(sign=True), e.half_of_families.kept.percent(),
         e.half_of_families.gain.percent(sign=True))
        for name, e in effects.items()
    ]  # fmt: skip
    return table(("score", "best half", "gain", "best half of each family", "gain"), rows)


def _samples(effects: dict[str, Effect]) -> str:
    head: list[str] = ["score"]
    for name in SAMPLED:
        head += [f"best of 4 at {name}", "over one sample", "over greedy"]
    rows = []
    for name, effect in effects.items():
        row = [name]
        for best in effect.of_four.values():
            row += [best.kept.percent(), best.gain.percent(sign=True), best.over_greedy.percent(sign=True)]
        rows.append(row)
    return table(head, rows)


def _verdict(interval: Interval) -> str:
    if interval.low > 0:
        return "raises accuracy"
    return "lowers accuracy" if interval.high < 0 else "no effect that these problems could show"


def _verdicts(group: str, effects: Mapping[str, Effect]) -> str:
    by_score = {SCORES[name]: effect for name, effect in effects.items()}
    rows, samples = by_score[DEFAULT_SCORE], by_score[DEFAULT_SAMPLE_SCORE]
    lines = [
        f"- {group}, best half by `{DEFAULT_SCORE}`: {_verdict(rows.half.gain)}, "
        f"{rows.half.gain.percent(sign=True)} points",
        f"- {group}, best half of each family by `{DEFAULT_SCORE}`: {_verdict(rows.half_of_families.gain)}, "
        f"{rows.half_of_families.gain.percent(sign=True)} points",
    ]
    for name, best in samples.of_four.items():
        lines.append(
            f"- {group}, best of 4 by `{DEFAULT_SAMPLE_SCORE}`, temperature {name}: over one sample "
            f"{_verdict(best.gain)}, {best.gain.percent(sign=True)} points; over the greedy row "
            f"{_verdict(best.over_greedy)}, {best.over_greedy.percent(sign=True)} points"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Generate, grade and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where to keep the generated outputs")
    parser.add_argument("--per-family", type=int, default=200)
    arguments = parser.parse_args(argv)
    generate(arguments.folder, arguments.per_family)
    sections, verdicts = [], []
    for group in FAMILIES:
        truth, effects = _effects(arguments.folder, group, "report")
        count = len(truth[GREEDY].family_P)
        verdicts.append(_verdicts(group, effects))
        sections.append(
            f"## {group.capitalize()}: {count} problems, {', '.join(FAMILIES[group])}\n\n{_base(truth)}\n\n"
            f"{_halves(effects)}\n\n{_samples(effects)}"
        )
    body = "\n\n".join((
        _INTRODUCTION, "## The default scores on the reported split\n\n" + "\n".join(verdicts), *sections,
        f"## The choice of the defaults\n\n{_CHOICE}\n\n{_chosen(arguments.folder)}",
    ))  # fmt: skip
    command = f"python -m benchmarks.quality.evidence --folder F --per-family {arguments.per_family}"
    write_result("quality-evidence", "What evidence is worth: best half and best of four", command, body)


_INTRODUCTION = """\
Model `tiny`, `verified`. Tasks that go beyond its training (`benchmarks/quality/tasks.py`): in `exact` one answer is
right, to the letter; in `open` many are, and the corpus' checker accepts what its grammar can say. What is kept comes
from `pipeline.filter`. Percent with 95% intervals: Wilson's for shares; for differences the percentile bootstrap over
problems, paired, in which the best half of each resample is chosen anew. The two splits share no prompt."""

_CHOICE = """\
On the split `choice` only, the highest mean accuracy: over the four tasks of the best half, and over the four of the
best of four samples. Differences among the first are small against the intervals above."""


if __name__ == "__main__":
    main()

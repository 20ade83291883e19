"""What history drafts give by themselves: tokens per forward and rows per token with a perfect verifier; their cost.

    python -m benchmarks.decode.history_drafts [--rows 400] [--concurrency 8] [--gsm8k FILE]

Offline: no model runs. Outputs are given texts, and a draft is accepted where it equals its text's next token. So the
tables tell how predictable texts are from their history, and not what an engine gains: that depends on what rows cost,
and on the drafts of masks, which compete for the same rows. Times are of one thread.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import table, write_result
from benchmarks.decode.history_suffix_tree import available, decode_with_tree, indexing_speed
from benchmarks.decode.history_texts import WORKLOADS, Row, Vocabulary
from wedlm_core.engine.history import DEFAULT_BYTES, History

__all__ = ["main"]

DRAFTS = 16
PRICES = (0.2, 0.5, 0.8)
"""Acceptance from which a draft is bought."""
BATCHES = (1, 8, 32, 256)
PROMPTS = (1_000, 10_000, 100_000)
_BINS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.01])
_VOCABULARY = 151_936
_STORED = 1_000_000  # tokens of finished rows behind which calls are timed


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What decoding of a workload took, summed over sequences.

    Attributes:
        tokens, forwards, offered, accepted: counts; of the drafts those that were bought.
        bins: float64 ``[3, bins]``, by estimated acceptance of all proposed drafts: how many, how many right, and the
            sum of the estimates.
    """

    tokens: int
    forwards: int
    offered: int
    accepted: int
    bins: np.ndarray

    @property
    def per_forward(self) -> float:
        """Tokens per forward of a sequence."""
        return self.tokens / self.forwards

    @property
    def rows(self) -> float:
        """Rows per token."""
        return (self.forwards + self.offered) / self.tokens


def rows_of(name: str, count: int, gsm8k: Path) -> list[Row]:
    """Rows of a workload, the same in every run; fewer where there are no more."""
    vocabulary, draw = Vocabulary(), random.Random(0)
    return [vocabulary.row(*pair) for pair in itertools.islice(WORKLOADS[name](draw, gsm8k), count)]


def decode(rows: Sequence[Row], concurrency: int, price: float, *, keep: bool = True) -> Outcome:
    """Decode all rows, ``concurrency`` at a time, with the drafts whose estimated acceptance is at least ``price``.

    Args:
        rows: prompts and outputs.
        concurrency: sequences at once.
        price: least estimated acceptance of a draft that is bought.
        keep: whether finished rows are a source.
    """
    history, waiting = History(concurrency, DRAFTS), list(reversed(rows))
    left: dict[int, np.ndarray] = {}  # what is left of each slot's output
    free, counts, bins = list(range(concurrency)), np.zeros(4, np.int64), np.zeros((3, len(_BINS) - 1))
    while left or waiting:
        while free and waiting:
            slot, row = free.pop(), waiting.pop()
            history.open(slot, row.prompt)
            left[slot] = row.output
        slots = np.array(sorted(left))
        proposal = history.propose(slots, np.full(len(slots), DRAFTS))
        truth = np.full((len(slots), DRAFTS + 1), -1)
        for i, slot in enumerate(slots.tolist()):
            truth[i, : len(left[slot])] = left[slot][: DRAFTS + 1]
        most = np.minimum(proposal.count_S, (truth >= 0).sum(axis=1) - 1)  # the verifier's token is none of them
        there = np.arange(DRAFTS) < most[:, None]
        right = np.logical_and.accumulate(there & (proposal.token_SD == truth[:, :-1]), axis=1)
        bought = there & (proposal.acceptance_SD >= price)
        agreed = (right & bought).sum(axis=1)
        found = np.digitize(proposal.acceptance_SD[there], _BINS) - 1
        for k, weight in enumerate((None, right[there], proposal.acceptance_SD[there])):
            bins[k] += np.bincount(found, weight, minlength=len(_BINS) - 1)
        counts += agreed.sum() + len(slots), len(slots), bought.sum(), agreed.sum()
        history.append(slots, truth, agreed + 1)
        for slot, count in zip(slots.tolist(), (agreed + 1).tolist(), strict=True):
            left[slot] = left[slot][count:]
            if not len(left[slot]):
                del left[slot]
                history.close(slot, keep=keep)
                free.append(slot)
    tokens, forwards, offered, accepted = counts.tolist()
    return Outcome(tokens=tokens, forwards=forwards, offered=offered, accepted=accepted, bins=bins)


def workloads(texts: Mapping[str, Sequence[Row]], concurrency: int) -> str:
    """Tokens per forward / rows per token of each workload, and how good the estimates are."""
    lines, bins = [], np.zeros((3, len(_BINS) - 1))
    for name, rows in texts.items():
        found = [decode(rows, concurrency, price) for price in PRICES]
        own = decode(rows, concurrency, PRICES[1], keep=False)
        bins += found[0].bins
        cells = [f"{o.per_forward:.2f} / {o.rows:.2f} / {o.accepted / max(o.offered, 1):.2f}" for o in (*found, own)]
        size = f"{np.mean([len(r.prompt) for r in rows]):.0f} + {np.mean([len(r.output) for r in rows]):.0f}"
        lines.append((name, len(rows), size, *cells))
        print(*lines[-1], sep=" | ", flush=True)
    header = (
        "workload",
        "rows",
        "prompt + output",
        *(f"from {p:g}" for p in PRICES),
        f"from {PRICES[1]:g}, own text only",
    )
    drafts, right, sums = bins
    estimates = [
        (f"{a:g} to {min(b, 1):g}", int(n), float(s / n), float(r / n))
        for a, b, n, r, s in zip(_BINS, _BINS[1:], drafts, right, sums, strict=False)
        if n
    ]
    return (
        f"{concurrency} sequences at once, {DRAFTS} drafts at most. A cell is tokens per forward / rows per token / "
        "share of the bought drafts that were right, where drafts are bought from an estimated acceptance on. A "
        "forward without drafts is 1 / 1.\n\n"
        + table(header, lines)
        + "\n\nEstimated acceptance against the share that was right, over all workloads and all proposed drafts "
        f"(bought from {PRICES[0]:g}):\n\n" + table(("estimate", "drafts", "mean estimate", "right"), estimates)
    )


def _median_us(call: Callable[[], object], rounds: int = 200) -> float:
    """Median microseconds of a call."""
    call()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(seconds)


def costs(rows: Sequence[Row]) -> str:
    """Microseconds of calls, tokens indexed per second, and bytes."""
    most = max(BATCHES)
    history, feed = History(most, DRAFTS), itertools.cycle(rows)
    while history.shared_tokens < _STORED:
        row = next(feed)
        history.open(0, np.concatenate([row.prompt, row.output]), output=len(row.output))
        history.close(0)
    for slot in range(most):
        row = next(feed)
        history.open(slot, np.concatenate([row.prompt, row.output])[: -len(row.output) // 2])
    lines = []
    for batch in BATCHES:
        slots, budget, ones = np.arange(batch), np.full(batch, DRAFTS), np.ones(batch, np.int64)
        propose = _median_us(lambda s=slots, b=budget: history.propose(s, b))  # type: ignore[misc]
        token = np.full((batch, 4), _VOCABULARY)
        append = _median_us(lambda s=slots, t=token, c=ones: history.append(s, t, c))  # type: ignore[misc]
        lines.append((batch, f"{propose:.0f}", f"{propose / batch:.1f}", f"{append:.0f}"))
    for slot in range(most):
        history.close(slot, keep=False)
    speeds, draw = [], np.random.default_rng(0)
    for size in PROMPTS:
        uniform = draw.integers(0, _VOCABULARY, size, dtype=np.int32)
        real = np.resize(np.concatenate([r.output for r in rows]), size)
        speeds.append((f"{size:,}", *(f"{size / _open_us(history, p):.0f}" for p in (uniform, real))))
    return (
        f"Behind {history.shared_tokens:,} tokens of finished rows, {DRAFTS} drafts per sequence, one token appended "
        "to each; medians of 200 calls on the same texts:\n\n"
        + table(("sequences", "propose, us", "us per sequence", "append, us"), lines)
        + "\n\nIndexing a prompt, million tokens per second:\n\n"
        + table(("tokens", f"uniform from {_VOCABULARY:,}", "text"), speeds)
        + f"\n\nTables for {most} slots: {history.bytes / 2**20:.1f} MiB of the {DEFAULT_BYTES / 2**20:.0f} MiB "
        f"allowed, whatever the number of rows; {1 << history.shared_bits:,} tokens of finished rows are remembered."
    )


def suffix_tree(texts: Mapping[str, Sequence[Row]], concurrency: int) -> str:
    """The same texts with the suffix tree of another project."""
    lines = []
    for name, rows in texts.items():
        cells = []
        for least in PRICES[:2]:
            tokens, forwards, offered, accepted, seconds = decode_with_tree(rows, concurrency, DRAFTS, least)
            share = accepted / max(offered, 1)
            cells.append(f"{tokens / forwards:.2f} / {(forwards + offered) / tokens:.2f} / {share:.2f}")
        lines.append((name, *cells, f"{1e6 * seconds / forwards:.0f}"))
        print(*lines[-1], sep=" | ", flush=True)
    speed, size = indexing_speed(texts["code"])
    header = ("workload", *(f"from {p:g}" for p in PRICES[:2]), "us per sequence")
    return (
        "`SuffixDecodingCache` of arctic_inference 0.3.0 with its defaults (depth 64, as many drafts as tokens "
        "matched), one call per sequence; drafts end below an estimated probability *of a token*, where the first "
        "table has the probability of all up to it. Cells as there.\n\n"
        + table(header, lines)
        + f"\n\nOutputs of `code` enter its shared tree at {speed:.2f} million tokens per second and take {size:.0f} "
        "bytes per token by its own estimate."
    )


def _open_us(history: History, prompt: np.ndarray) -> float:
    def call() -> None:
        history.open(0, prompt)
        history.close(0, keep=False)

    return _median_us(call, 20)


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--gsm8k", default="../shared/data/gsm8k_test.jsonl", help="JSON Lines with question, answer")
    args = parser.parse_args()
    texts = {name: rows_of(name, args.rows, Path(args.gsm8k)) for name in WORKLOADS}
    texts = {name: rows for name, rows in texts.items() if rows}
    parts = [
        _PREFACE,
        "## What texts give",
        workloads(texts, args.concurrency),
        "## What it costs",
        costs(texts["code"]),
    ]
    if available():
        parts += ["## A suffix tree beside it", suffix_tree(texts, args.concurrency)]
    body = "\n\n".join(parts)
    command = f"python -m benchmarks.decode.history_drafts --rows {args.rows} --concurrency {args.concurrency}"
    write_result("history-drafts", "History drafts by themselves", command, body, threads=1)


_PREFACE = (
    "**No model runs here.** Outputs are given texts, and a draft is accepted where it equals the next token: what a "
    "verifier that insists on this text would do. Tokens are words with their space, single digits and single other "
    "characters, about what large vocabularies make of such text. Copying, editing, summarising and templates are made "
    "from the standard library's text and code by drawing words (`benchmarks/decode/history_texts.py`); gsm8k is the "
    "human answers to its test questions; code and prose are the standard library's functions and language reference, "
    "each function and paragraph once."
)


if __name__ == "__main__":
    main()

"""The gain of drafts from history on a real model: ``verified`` with them and without, and autoregressive decoding.

    python -m benchmarks.decode.history_engine [--batches 1 8 32] [--rounds 5] [--repeats 1]
        [--rows 1024] [--workloads copying lists templates "free text"] [--sampling qwen3]

The shipped model on toy problems. *copying*: the prompt contains the answer. *lists*: so it does,
in other lines. *templates*: each row extracts JSON of the same keys. *free text*: stories and letters. The
*untrained masks* is the same model with the embedding of its mask replaced by the mean of all: its masks propose
unrelated tokens, as in a checkpoint that was never trained to fill masks. The ways run in one process on engines of
their own, a few milliseconds each in turns; each keeps its history from round to round, as a job does. Ratios are taken
within a round; their median is shown, and the middle half of them. Equal engines may differ by some percent
for rounds, as each measures forwards and chooses windows for itself: so there are two without history, and with
``--repeats`` all begins again so many times, and rounds of all are taken together. *History alone* never forwards a
mask: of it and of masks alone, the better is the best single source of drafts. Outputs of all ways are checked to be
equal.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.common import SAMPLING, positive, table, write_result
from benchmarks.decode.turns import Passage, first_lengths, take_turns
from testing.toy import Problem, stream
from wedlm_core import EngineConfig, Generation, Request, SamplingParams
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

WORKLOADS: Mapping[str, Sequence[str]] = {
    "copying": ("copying",),
    "lists": ("bullets", "alphabet"),
    "templates": ("extraction",),
    "free text": ("stories", "letters"),
}
_SPREAD = 24  # the first sequences end within so many tokens
WAYS = (
    "verified", "verified without history", "autoregressive", "verified, history alone",
    "verified without history, again",
)  # fmt: skip
"""The last is another engine like the second: by how much the two differ, two ways may differ by chance."""
_SINGLE = WAYS[1], WAYS[3]  # each has one source of drafts
_DRAWN = 1.4
"""Prompts drawn of a family for each that is needed; those with other prompts than the ones before are taken."""
_ROUND_ROWS = 1024
"""Of a round of one sequence, if there are as many. The first round warms up: for a hundred forwards an engine asks for
drafts, whether they pay or not, and trials become rare only then. Shorter rounds measure the begin of a job."""
_SEVERAL = 4
"""Times as many rows where several sequences run at once: a row takes as much less of the time, or less than that."""
_NO_MASKS = replace(CONSTANTS, prior_hazard=0.0, near=2.0, trial_share=0.0)
_MOST = 32  # sequences at once


def engines(trained: bool) -> dict[str, Engine]:
    """One engine for each way."""
    folder = resolve("tiny")

    def engine(way: str) -> Engine:
        model = load_model(folder)
        mask = model.config.mask_token_id
        if not trained and mask is not None:
            model.embed.weight.data[mask] = model.embed.weight.data.mean(dim=0)
        config = EngineConfig(max_num_seqs=_MOST, history_drafts=way in (WAYS[0], WAYS[3]))
        return Engine(model, Tokenizer.load(folder), config, constants=_NO_MASKS if way == WAYS[3] else CONSTANTS)

    return {way: engine(way) for way in WAYS}


def _drawn(family: str, wanted: int) -> list[Problem]:
    drawn = itertools.islice(stream(0, "train", {family: 1.0}), round(_DRAWN * wanted))
    return list({problem.prompt: problem for problem in drawn}.values())


def prompts_of(workload: str, tokenizer: Tokenizer, wanted: int) -> list[tuple[int, ...]]:
    """Prompts of a workload, its families in turns: so many, or all that there are."""
    families = [_drawn(name, wanted) for name in WORKLOADS[workload]]
    mixed = [problem for group in itertools.zip_longest(*families) for problem in group if problem is not None]
    return [
        tuple(tokenizer.apply_chat_template([{"role": "user", "content": p.prompt}], True, tokenize=True))
        for p in mixed[:wanted]
    ]


def passage(
    engine: Engine, way: str, prompts: Sequence[tuple[int, ...]], batch: int, ids: Iterator[int], sampling: str
) -> Passage:
    """The way of an engine through prompts, ``batch`` sequences at once."""
    params = SamplingParams(strategy=way.split(" ")[0].rstrip(","), max_tokens=96, **SAMPLING[sampling])
    first = [replace(params, max_tokens=length) for length in first_lengths(batch, _SPREAD)]
    requests = [
        Request(
            request_id=f"{number}/{next(ids)}",
            prompt_token_ids=prompt,
            params=first[number] if number < batch else params,
            seed=number,
        )
        for number, prompt in enumerate(prompts)
    ]
    return Passage(engine=engine, requests=requests, batch=batch)


def number_of(one: Generation) -> int:
    """The prompt of an output."""
    return int(one.request_id.partition("/")[0])


def run_rounds(
    workload: str, masks: str, batch: int, rounds: int, rows: int, sampling: str
) -> list[Mapping[str, Passage]]:
    """Rounds of fresh engines, with other rows each, ``rows`` of them if there are."""
    ids, subjects = itertools.count(), engines(masks == "trained")
    rows = rows if batch == 1 else _SEVERAL * rows
    prompts = prompts_of(workload, subjects["verified"].tokenizer, rows * (rounds + 1))
    each = len(prompts) // (rounds + 1)
    if each < batch:
        rule = f"a round of {workload} has {each} rows, and {batch} sequences need as many at least"
        raise SystemExit(f"--rounds {rounds} --rows {rows}: {rule}. Give fewer rounds, or more rows")
    found: list[Mapping[str, Passage]] = []
    for turn in range(rounds + 1):
        part = prompts[turn * each : (turn + 1) * each]
        results = {way: passage(engine, way, part, batch, ids, sampling) for way, engine in subjects.items()}
        take_turns(list(results.values()))
        outputs = {tuple(one.token_ids for one in sorted(way.done, key=number_of)) for way in results.values()}
        if len(outputs) != 1:
            raise SystemExit(f"{workload}: the outputs of {', '.join(WAYS)} differ")
        found.append(results)
    return found[1:]  # the first warms up


def race(
    workload: str, masks: str, batch: int, rounds: int, repeats: int, rows: int, sampling: str
) -> list[tuple[object, ...]]:
    """Lines of one workload and batch."""
    found = [one for _ in range(repeats) for one in run_rounds(workload, masks, batch, rounds, rows, sampling)]
    lines: list[tuple[object, ...]] = []
    best = min(_SINGLE, key=lambda way: statistics.median(one[way].seconds_per_token for one in found))
    for way in WAYS:
        seconds = [one[way].seconds_per_token for one in found]
        done = [generation for one in found for generation in one[way].done]
        tokens = sum(len(one.token_ids) for one in done)
        forwards, forwarded, drafts, accepted = (
            sum(getattr(one.stats, name) for one in done)
            for name in ("decode_forwards", "rows_forwarded", "history_drafts", "history_drafts_accepted")
        )
        over = [spread(ratios_to(other, way, found)) for other in (WAYS[1], WAYS[2], best)]
        lines.append(("tiny", workload, masks, batch, way, f"{1 / statistics.median(seconds):.0f}",
                      f"{1 / max(seconds):.0f} to {1 / min(seconds):.0f}", *over[0], *over[1], *over[2],
                      f"{tokens / max(1, forwards):.2f}", f"{forwarded / tokens:.2f}", f"{drafts / tokens:.2f}",
                      f"{accepted / drafts:.2f}" if drafts else "-"))  # fmt: skip
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def ratios_to(other: str, way: str, found: Sequence[Mapping[str, Passage]]) -> list[float]:
    """How many times as fast as another one a way was, by round."""
    return [one[other].seconds_per_token / one[way].seconds_per_token for one in found]


def spread(ratios: Sequence[float]) -> tuple[str, str]:
    """The median, and the middle half."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * [ratios[0]]
    return f"{middle:.2f}", f"{low:.2f} to {high:.2f}"


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--repeats", type=positive, default=1, help="times that all begins again")
    parser.add_argument(
        "--rows",
        type=positive,
        default=_ROUND_ROWS,
        help="of a round of one sequence, at most; of several four times as many",
    )
    parser.add_argument("--sampling", default="own", choices=list(SAMPLING))
    args = parser.parse_args()
    if max(args.batches) > _MOST:
        raise SystemExit(f"--batches {max(args.batches)}: at most {_MOST} sequences run at once. Give fewer")
    lines = [
        line
        for masks in ("trained", "untrained")
        for name in args.workloads
        for batch in args.batches
        for line in race(name, masks, batch, args.rounds, args.repeats, args.rows, args.sampling)
    ]
    header = ("model", "workload", "masks", "sequences", "way", "tokens/s", "over rounds", "over without history",
              "middle half", "over autoregressive", "middle half", "over the best single source", "middle half",
              "tokens per forward", "rows per token", "drafts a token", "accepted")  # fmt: skip
    command = f"python -m benchmarks.decode.history_engine {' '.join(map(shlex.quote, sys.argv[1:]))}".rstrip()
    name = "history-engine" if args.sampling == "own" else f"history-engine-{args.sampling}"
    write_result(name, "Drafts from history in the engine", command, table(header, lines))


if __name__ == "__main__":
    main()

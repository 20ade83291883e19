"""Timed passes of an engine over a workload, and races between ways of decoding it.

Contenders run in interleaved rounds on one engine, and what is reported is the median over rounds of the ratio
of two contenders *of the same round*, so that a machine that slows down for a while slows both.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wedlm_core import LLM, Generation, Request, SamplingParams
from wedlm_core.seeds import row_seed

__all__ = ["Budget", "Contender", "Pass", "Race", "Ratio", "Workload", "race", "run_pass"]

_NUMBERS = itertools.count()  # request ids stay apart over all passes of a process
_HOPELESS = 0.75  # a fixed window slower than this part of the best one in the first round is not run again


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts that are decoded ``concurrency`` at a time.

    Attributes:
        prompts: token ids.
        params: sampling parameters of each prompt, but for strategy and window.
        concurrency: sequences in the engine at once; the next prompt enters as soon as one finishes.
    """

    prompts: Sequence[Sequence[int]]
    params: Sequence[SamplingParams]
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to decode: fields of SamplingParams that replace the workload's.

    Attributes:
        may_drop: left out of later rounds where it cannot be the best, and stopped where it takes far too long.
    """

    name: str
    settings: Mapping[str, object]
    may_drop: bool = False


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One timed pass.

    Attributes:
        seconds: wall-clock time.
        tokens: generated, those of unfinished sequences included where the pass was stopped.
        outputs: generations in prompt order; None where the pass was stopped at its time limit.
        finished: generations that were finished, in any order.
    """

    seconds: float
    tokens: int
    outputs: Sequence[Generation] | None
    finished: Sequence[Generation]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def ids(self) -> list[tuple[int, ...]] | None:
        """Token ids in prompt order."""
        return None if self.outputs is None else [g.token_ids for g in self.outputs]

    @property
    def tokens_per_forward(self) -> float:
        """Over all finished generations, each with its own forwards."""
        forwards = sum(g.stats.decode_forwards for g in self.finished)
        return sum(g.stats.generated_tokens for g in self.finished) / max(1, forwards)

    @property
    def rows_per_token(self) -> float:
        """Rows forwarded after the prompts over tokens."""
        tokens = sum(g.stats.generated_tokens for g in self.finished)
        return sum(g.stats.rows_forwarded for g in self.finished) / max(1, tokens)


def run_pass(
    llm: LLM, work: Workload, settings: Mapping[str, object] | None = None, limit_seconds: float | None = None
) -> Pass:
    """Decode the workload; past ``limit_seconds`` stop where it stands. Leaves the engine empty."""
    number, engine = next(_NUMBERS), llm.engine
    requests = [
        Request(
            request_id=f"{number}.{i}",
            prompt_token_ids=tuple(prompt),
            params=replace(params, **(settings or {})),  # type: ignore[arg-type]
            seed=row_seed(0, str(i)),
        )
        for i, (prompt, params) in enumerate(zip(work.prompts, work.params, strict=True))
    ]
    gc.collect()
    waiting, running = iter(requests), 0
    done: dict[str, Generation] = {}
    begin = time.perf_counter()
    while len(done) < len(requests):
        for request in itertools.islice(waiting, work.concurrency - running):
            engine.add(request)
            running += 1
        for generation in engine.step():
            done[generation.request_id] = generation
            running -= 1
        if limit_seconds is not None and time.perf_counter() - begin > limit_seconds:
            break
    seconds = time.perf_counter() - begin
    tokens = sum(len(g.token_ids) for g in done.values())
    complete = len(done) == len(requests)
    if not complete:
        open_ids = [r.request_id for r in requests if r.request_id not in done]
        left = set(open_ids) - {r.request_id for r in waiting}
        tokens += sum(len(engine.committed(i)) for i in left)
        for request_id in left:
            engine.abort(request_id)
    outputs = [done[r.request_id] for r in requests] if complete else None
    return Pass(seconds=seconds, tokens=tokens, outputs=outputs, finished=list(done.values()))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a race may take: at least ``least`` rounds, then more until ``seconds`` are over or ``most`` are run."""

    seconds: float = 12.0
    least: int = 3
    most: int = 9


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median over rounds of the ratio of two rates, with the lowest and highest round."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Race:
    """Passes by contender and round; None where a contender did not run in a round."""

    passes: Mapping[str, Sequence[Pass | None]] = field(default_factory=dict)

    def ratio(self, name: str, other: str) -> Ratio:
        """Rate of ``name`` over rate of ``other``."""
        pairs = zip(self.passes[name], self.passes[other], strict=True)
        ratios = [a.rate / b.rate for a, b in pairs if a is not None and b is not None]
        return Ratio(median=statistics.median(ratios), low=min(ratios), high=max(ratios), rounds=len(ratios))

    def rate(self, name: str) -> float:
        """Median tokens per second."""
        return statistics.median(p.rate for p in self.passes[name] if p is not None)

    def one(self, name: str) -> Pass:
        """Its first pass: for counts, which do not depend on the clock."""
        return next(p for p in self.passes[name] if p is not None)

    def best(self, names: Sequence[str]) -> str:
        """The one of ``names`` with the highest median rate among those that ran to the last round."""
        stayed = [n for n in names if self.passes[n][-1] is not None] or list(names)
        return max(stayed, key=self.rate)


def race(
    llm: LLM, work: Workload, contenders: Sequence[Contender], budget: Budget, *, same_tokens: Sequence[str] = ()
) -> Race:
    """Run the contenders in rounds, in turning order, after an untimed round of those that stay to the end.

    Args:
        llm: the engine they share.
        work: what they decode.
        contenders: by default all run in all rounds.
        budget: how many rounds.
        same_tokens: contenders whose tokens have to be those of the first of them, in every pass.

    Raises:
        AssertionError: they are not.
    """
    passes: dict[str, list[Pass | None]] = {c.name: [] for c in contenders}
    expected: list[tuple[int, ...]] | None = None
    running, begin, turn, limit = list(contenders), time.perf_counter(), 0, float("inf")
    warm = {c.name: run_pass(llm, work, c.settings) for c in contenders if not c.may_drop}
    if same_tokens:
        expected = warm[same_tokens[0]].ids
    while turn < budget.least or (turn < budget.most and time.perf_counter() - begin < budget.seconds):
        order = running if turn % 2 == 0 else running[::-1]
        for contender in order:
            one = run_pass(llm, work, contender.settings, limit if contender.may_drop else None)
            if contender.name in same_tokens and one.ids is not None and one.ids != expected:
                raise AssertionError(f"{contender.name} gave other tokens than {same_tokens[0]}")
            passes[contender.name].append(one)
            if not contender.may_drop:
                limit = min(limit, one.seconds * 2)
        for contender in contenders:
            if contender not in running:
                passes[contender.name].append(None)
        if turn == 0:
            running = _hopeful(running, passes)
        turn += 1
    return Race(passes=passes)


def _hopeful(running: Sequence[Contender], passes: Mapping[str, Sequence[Pass | None]]) -> list[Contender]:
    """Those that stay, and of the others those near the best of them."""
    rates = {c.name: one.rate for c in running if c.may_drop and (one := passes[c.name][0]) is not None}
    best = max(rates.values(), default=0.0)
    return [c for c in running if not c.may_drop or rates[c.name] >= _HOPELESS * best]

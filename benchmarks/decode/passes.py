"""Timed passes of an engine over a workload, and races between sampling parameters.

Contenders run in interleaved rounds on one engine. The result is the median over rounds of the ratio of two contenders
*in the same round*, so that a temporary slowdown of the machine affects both.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wedlm_core import LLM, Generation, Request, SamplingParams
from wedlm_core.seeds import row_seed
from wedlm_core.statistics import tokens_per_forward

_NUMBERS = itertools.count()  # request ids are unique over all passes of a process
_HOPELESS = 0.75  # a fixed window below this share of the best one in the first round is not run again


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts that are decoded ``concurrency`` at a time.

    Attributes:
        prompts: token ids.
        params: sampling parameters of each prompt, except strategy and window.
        concurrency: sequences in the engine at once; the next prompt enters when one finishes.
    """

    prompts: Sequence[Sequence[int]]
    params: Sequence[SamplingParams]
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A competitor in a race: fields of SamplingParams that replace the workload's.

    Attributes:
        may_drop: whether it is dropped from later rounds if it cannot be the best, and stopped if it is far too slow.
    """

    name: str
    settings: Mapping[str, object]
    may_drop: bool = False


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One timed pass.

    Attributes:
        seconds: wall-clock time at full load: until fewer than ``concurrency`` sequences are left.
        tokens: tokens generated in that time, those of unfinished sequences included.
        outputs: generations in prompt order; None if the pass was stopped at its time limit.
        finished: finished generations, in any order.
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
        """Tokens over decode forwards, as a ratio of sums over the finished generations."""
        forwards = sum(g.stats.decode_forwards for g in self.finished)
        return tokens_per_forward(sum(g.stats.generated_tokens for g in self.finished), forwards)

    @property
    def rows_per_token(self) -> float:
        """Rows forwarded after the prompts per generated token."""
        tokens = sum(g.stats.generated_tokens for g in self.finished)
        return sum(g.stats.rows_forwarded for g in self.finished) / max(1, tokens)


def run_pass(
    llm: LLM, work: Workload, settings: Mapping[str, object] | None = None, limit_seconds: float | None = None
) -> Pass:
    """Decode the workload, but stop after ``limit_seconds``. The engine is empty afterwards."""
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
    waiting = deque(requests)
    done: dict[str, Generation] = {}
    open_ids: dict[str, None] = {}
    seconds, tokens = None, 0
    begin = time.perf_counter()
    while waiting or open_ids:
        while waiting and len(open_ids) < work.concurrency:
            request = waiting.popleft()
            engine.add(request)
            open_ids[request.request_id] = None
        for generation in engine.step():
            done[generation.request_id] = generation
            del open_ids[generation.request_id]
        spent = time.perf_counter() - begin
        late = limit_seconds is not None and spent > limit_seconds
        if seconds is None and (late or (not waiting and len(open_ids) < work.concurrency)):
            # From here on the batch drains. A job drains once, but every pass would: so it does not count.
            seconds = spent
            tokens = sum(len(g.token_ids) for g in done.values()) + sum(len(engine.committed(i)) for i in open_ids)
        if late:
            break
    for request_id in open_ids:
        engine.abort(request_id)
    outputs = [done[r.request_id] for r in requests] if len(done) == len(requests) else None
    return Pass(seconds=seconds or spent, tokens=tokens, outputs=outputs, finished=list(done.values()))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a race: at least ``least`` rounds, at most ``most``, and no new one after ``seconds``."""

    seconds: float = 12.0
    least: int = 3
    most: int = 9


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median over rounds of the ratio of two rates, with the lowest and highest round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Race:
    """Passes by contender and round; None if a contender did not run in a round."""

    passes: Mapping[str, Sequence[Pass | None]] = field(default_factory=dict)

    def ratio(self, name: str, other: str) -> Ratio:
        """Rate of ``name`` over rate of ``other``."""
        pairs = zip(self.passes[name], self.passes[other], strict=True)
        ratios = [a.rate / b.rate for a, b in pairs if a is not None and b is not None]
        return Ratio(median=statistics.median(ratios), low=min(ratios), high=max(ratios))

    def rate(self, name: str) -> float:
        """Median tokens per second."""
        return statistics.median(p.rate for p in self.passes[name] if p is not None)

    def one(self, name: str) -> Pass:
        """The first pass of a contender, for counts that do not depend on time."""
        return next(p for p in self.passes[name] if p is not None)

    def best(self, names: Sequence[str]) -> str:
        """The fastest of ``names`` by median rate, among those that ran in the last round."""
        stayed = [n for n in names if self.passes[n][-1] is not None] or list(names)
        return max(stayed, key=self.rate)


def race(
    llm: LLM, work: Workload, contenders: Sequence[Contender], budget: Budget, *, same_tokens: Sequence[str] = ()
) -> Race:
    """Run the contenders in rounds, in rotating order, after an untimed round of those that may not be dropped.

    Args:
        llm: the model and engine that they share.
        work: the workload.
        contenders: the competitors.
        budget: number of rounds.
        same_tokens: names of contenders that must all give the same tokens, in every pass.

    Raises:
        AssertionError: they gave different tokens.
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
    """The contenders of the next round: those that may not be dropped, and the others that are near the best."""
    rates = {c.name: one.rate for c in running if c.may_drop and (one := passes[c.name][0]) is not None}
    best = max(rates.values(), default=0.0)
    return [c for c in running if not c.may_drop or rates[c.name] >= _HOPELESS * best]

"""Passes requests with a ``continuation`` to the scorer, and returns their results as generations."""

from __future__ import annotations

import math
import time

from wedlm_core.engine.generations import NOT_NUMBERS
from wedlm_core.engine.scoring import Scored, Scorer
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import CommitStats, FinishReason, Generation, Request, Timings


class ScoredRequests:
    """The requests of an engine that are scored. Not thread safe.

    Args:
        scorer: of the engine.
        tokenizer: decodes continuations.

    Attributes:
        unfinished: request id -> the scorer's key, of requests that wait or are under way.
    """

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer) -> None:
        self._scorer, self._tokenizer = scorer, tokenizer
        self.unfinished: dict[str, int] = {}
        self._requests: dict[int, tuple[Request, float]] = {}
        self._added = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError, CapacityError: see :meth:`Scorer.add`.
        """
        tokens = (*request.prompt_token_ids, *request.continuation)
        self._scorer.add(self._added, tokens, len(request.continuation))
        self.unfinished[request.request_id] = self._added
        self._requests[self._added] = request, time.perf_counter()
        self._added += 1

    def abort(self, request_id: str) -> None:
        """Forget a request; an unknown id is ignored."""
        key = self.unfinished.pop(request_id, None)
        if key is not None:
            self._scorer.drop(key)
            del self._requests[key]

    def step(self) -> list[Generation] | None:
        """Run one forward and return the requests that it finished; None if all wait for pages of other sequences."""
        done = self._scorer.step()
        return None if done is None else [self._generation(one) for one in done]

    def _generation(self, scored: Scored) -> Generation:
        request, added = self._requests.pop(scored.key)
        del self.unfinished[request.request_id]
        tokens, logprobs = request.continuation, scored.logprobs
        sound = not any(map(math.isnan, logprobs))
        return Generation(
            request_id=request.request_id,
            sample_index=request.sample_index,
            text=self._tokenizer.decode(tokens),
            token_ids=tokens,
            prompt_tokens=len(request.prompt_token_ids),
            finish_reason=FinishReason.STOP if sound else FinishReason.ERROR,
            error=None if sound else NOT_NUMBERS,
            seed=request.seed,
            stats=CommitStats(
                generated_tokens=len(tokens),
                mean_logprob=math.fsum(logprobs) / len(tokens),
                worst_logprob=min(logprobs),
                cached_prompt_tokens=scored.cached_tokens,
            ),
            timings=Timings(run_seconds=time.perf_counter() - added),
            logprobs=logprobs,
            prompt_token_ids=request.prompt_token_ids,
        )

"""Conversations: the request of a turn makes the request of the next one, when its answer is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from pipeline.codec import Conversation, Failure, FinishReason, Generation, Request, turn_seed
from pipeline.config import RunConfig
from pipeline.prompts.model_files import resolved_model
from pipeline.prompts.structures import split_reasoning
from pipeline.worker.engine_thread import LinkedRequest
from wedlm_core.statistics import stats_of_several
from wedlm_core.types import Timings


@dataclass(frozen=True, kw_only=True)
class TurnRequest(LinkedRequest):
    """A turn of a conversation.

    Attributes:
        config: of the run.
        messages: so far, the last one of the user; answers are without reasoning.
        later: the messages of the user that follow.
        between: for each of these, the tokens from the answer before to the end of its prompt, without the tail.
        tail: end of each prompt that later prompts leave out.
        done: the generations of the turns before.
    """

    config: RunConfig = field(repr=False, compare=False)
    messages: tuple[Mapping[str, str], ...]
    later: Sequence[Mapping[str, str]]
    between: Sequence[Sequence[int]]
    tail: tuple[int, ...]
    done: tuple[Generation, ...] = ()

    def after(self, generation: Generation) -> TurnRequest | Generation | Failure:
        """The next turn, or the conversation; a turn that fails is the failure of the whole."""
        if generation.finish_reason is FinishReason.ERROR:
            return self._failure("GenerationError", generation.error or "the engine gave no reason")
        answer, done = self._answer(generation), (*self.done, generation)
        messages = (*self.messages, {"role": "assistant", "content": answer})
        if not self.later:
            return _conversation(done, messages)
        earlier = self.prompt_token_ids[: len(self.prompt_token_ids) - len(self.tail)]
        return replace(
            self,
            prompt_token_ids=(*earlier, *self._answer_ids(generation, answer), *self.between[0], *self.tail),
            seed=turn_seed(done[0].seed, len(done)),
            messages=(*messages, self.later[0]),
            later=self.later[1:],
            between=self.between[1:],
            done=done,
        )

    def failed(self, error: BaseException) -> Failure:
        """The failure of the conversation, with the number of this turn."""
        own = Failure.of(error)
        return self._failure(own.error_class, own.message)

    def _failure(self, error_class: str, message: str) -> Failure:
        turn = len(self.done) + 1
        return Failure(error_class=error_class, message=f"turn {turn} of {turn + len(self.later)}: {message}")

    def _answer(self, generation: Generation) -> str:
        tags = self.config.reasoning
        if tags is None:
            return generation.text
        return split_reasoning(self.config, tags, generation, lambda: self.prompt_token_ids)[1]

    def _answer_ids(self, generation: Generation, answer: str) -> Sequence[int]:
        """The generated tokens, without a special token at their end, as the template writes its own.

        Where the answer is a part of their text, as after reasoning or before a stop string, it is tokenised again.
        """
        tokenizer, ids = resolved_model(self.config).tokenizer, generation.token_ids
        if tokenizer.decode(ids) != answer:
            return tokenizer.encode_as_text(answer)
        ended = generation.finish_reason is FinishReason.STOP and bool(ids) and not tokenizer.decode(ids[-1:])
        return ids[: len(ids) - ended]


def conversation(
    first: Request, turns: Sequence[Sequence[int]], asked: Sequence[Mapping[str, str]], config: RunConfig
) -> TurnRequest:
    """The first turn of a conversation, from its request and the messages without answers.

    ``turns``: the tokens of the tail, then those between answers; see :func:`pipeline.prompts.turns.encoded_turns`.
    """
    own = {one.name: getattr(first, one.name) for one in fields(Request)}
    tail, *between = turns
    begin = len(asked) - len(between)  # of the later ones; a system message is in front, if there is one
    messages, later = tuple(asked[:begin]), asked[begin:]
    return TurnRequest(**own, config=config, messages=messages, later=later, between=between, tail=tuple(tail))


def _conversation(turns: Sequence[Generation], messages: Sequence[Mapping[str, str]]) -> Conversation:
    last = {one.name: getattr(turns[-1], one.name) for one in fields(Generation)}
    return Conversation(**last | {
        "messages": messages,
        "turns": turns,
        "seed": turns[0].seed,
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "stats": stats_of_several([turn.stats for turn in turns]),
        "timings": Timings(
            queue_seconds=sum(turn.timings.queue_seconds for turn in turns),
            run_seconds=sum(turn.timings.run_seconds for turn in turns),
        ),
    })  # fmt: skip

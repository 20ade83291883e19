"""Conversations: the chat template is cut at the answers before any answer exists.

The template is rendered with placeholders in place of the answers. The texts between them are encoded once, and the
worker puts the tokens of the answers between them. So no template is rendered while rows are generated, and each
prompt begins with the tokens of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.codec import Failure, RequestError, explain
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import Job
from pipeline.prompts.conversation import user_turns, with_system
from pipeline.prompts.model_files import model_length, resolved_model
from pipeline.prompts.prompt import (
    ChatCells,
    PromptText,
    Turns,
    chat_text,
    encode_marked,
    is_marked,
    marked,
    no_value,
    noted,
)
from pipeline.settings.reasoning import NAMED


def turns_prompt(value: Any, job: Job, cells: ChatCells) -> PromptText:
    """The prompt of the first turn, with the turns that follow.

    Raises:
        RequestError: the cell holds no turns, or the chat template cannot be cut at their answers.
    """
    name, config = job.prompt_column, job.config
    if isinstance(value, Exception):
        raise no_value(f"column {name!r}", value)
    if value is None:
        raise RequestError(explain(name, value, "turns are never null", "Fill it in."))
    given = user_turns(name, value)
    messages = with_system(marked(name, given, config), config.system_prompt)
    prompt, tail, between = _cut(messages, config, cells)
    found = noted(prompt, *(message["content"] for message in given), chat=True)
    found.turns = Turns(messages=[*map(dict, with_system([*given], config.system_prompt))], tail=tail, between=between)
    return found


def check_turns(config: RunConfig) -> None:
    """Check that the chat template of a run's model can be cut at the answers of a conversation.

    Raises:
        ConfigError: it cannot.
        WeightsError: the tokenizer cannot be read.
    """
    messages = with_system([{"role": "user", "content": text} for text in ("a", "b", "c")], config.system_prompt)
    try:
        _cut(messages, config, ChatCells())
    except RequestError as error:
        raise ConfigError(str(error)) from error


def _cut(messages: list[Any], config: RunConfig, cells: ChatCells) -> tuple[str, str, tuple[str, ...]]:
    """The first prompt, the tail, and the texts between answers; see :class:`Turns`.

    Raises:
        RequestError: a prompt of the template does not begin with the one before.
    """
    answer = _unused(messages)
    prompts = [chat_text(part, config, cells) for part in _parts(messages, answer)]
    pieces = prompts[-1].split(answer)
    tail = prompts[0].removeprefix(pieces[0]) if len(pieces) > 1 else ""
    whole = [answer.join(pieces[: turn + 1]) + tail for turn in range(len(prompts) - 1)]
    if len(pieces) != len(prompts) or whole != prompts[:-1] or not pieces[-1].endswith(tail):
        raise _refused("the model's chat template changes earlier messages when a turn follows", "Use another model.")
    if config.reasoning is None and tail.strip() in {opened for opened, _ in NAMED.values()}:
        raise _refused("the model's chat template opens the reasoning of each answer", "Set reasoning_parser.")
    return prompts[0], tail, tuple(piece.removesuffix(tail) if piece is pieces[-1] else piece for piece in pieces[1:])


def _refused(rule: str, remedy: str) -> RequestError:
    return RequestError(f"turns_column: {rule}. {remedy}")


def _unused(messages: Sequence[Any]) -> str:
    """A text that occurs in no message."""
    word = "answer"
    while any(word in message["content"] for message in messages):
        word += "-" + word
    return f"[{word}]"


def _parts(messages: Sequence[Any], answer: str) -> Iterator[list[Any]]:
    """The messages of each turn's prompt, with the same answer to each turn before it."""
    part: list[Any] = []
    for message in messages:
        part = [*part, message]
        if message["role"] == "user":
            yield part
            part = [*part, {"role": "assistant", "content": answer}]


def encoded_turns(
    prompts: list[Any], turns: Sequence[Turns | None], max_tokens: Sequence[int], config: RunConfig
) -> list[Sequence[Sequence[int]] | None]:
    """For each row the tokens of its tail and of the texts between its answers.

    ``prompts``: token ids of each first prompt, or its failure; a row with a turn that cannot fit is failed.
    """
    found: list[Sequence[Sequence[int]] | None] = []
    for i, own in enumerate(turns):
        ids = None
        if own is not None and isinstance(prompts[i], list):
            try:
                ids = _encoded(prompts[i], own, max_tokens[i], config)
            except Exception as error:  # whatever is wrong with one row must not end the run
                prompts[i] = Failure.of(error)
        found.append(ids)
    return found


def _encoded(prompt: Sequence[int], turns: Turns, max_tokens: int, config: RunConfig) -> list[list[int]]:
    tokenizer, length = resolved_model(config).tokenizer, model_length(config)
    tail, *between = (
        encode_marked(text, tokenizer) if is_marked(text, config) else tokenizer.encode(text)
        for text in (turns.tail, *turns.between)
    )
    if tail != [*prompt[len(prompt) - len(tail) :]]:
        raise _refused(f"the tokenizer joins {turns.tail!r} with the text before it", "Use another model.")
    tokens = len(prompt)
    for turn, ids in enumerate(between, start=2):
        tokens += len(ids)
        if tokens + max_tokens > length:
            rule = f"at most {length} tokens together, the model's length"
            raise RequestError(
                f"turn {turn} of {len(between) + 1}: "
                + explain("prompt + max_tokens", f"at least {tokens} + {max_tokens}", rule, "Shorten or split it.")
            )
    return [tail, *between]

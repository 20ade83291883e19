"""The requests of a conversation follow each other under one id, in this process and in forked ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.codec import Conversation, Failure, FinishReason, Generation, Request, SamplingParams
from pipeline.config import RunConfig
from pipeline.plan.job import resolve_job
from pipeline.prompts.model_files import resolved_model
from pipeline.sources import source_of
from pipeline.storage.local import LocalStorage
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.forks import Forks
from pipeline.worker.row_isolation import ChildDiedError
from pipeline.worker.turn_requests import TurnRequest, conversation
from testing.pipeline.deadly_engines import DEADLY_TOKEN, deadly_row_engine
from testing.pipeline.fakes import BANNED_TOKEN, FakeEngine
from wedlm_core.seeds import turn_seed

ASKED = [{"role": role, "content": role[0]} for role in ("system", "user", "user", "user")]


@pytest.fixture(scope="module")
def config(qwen3_folder: Path) -> RunConfig:
    return RunConfig(input=[{"turns": ["a"]}], output="-", model=str(qwen3_folder), turns_column="turns")


def requests(config: RunConfig, third: int = 9) -> list[Request]:
    """Two conversations of three turns; ``third``: a token of the first one's third prompt."""
    plain = Request(request_id="0", prompt_token_ids=(7, 8), params=SamplingParams(max_tokens=8), seed=3)
    return [
        conversation(replace(plain, request_id=str(i)), [[8], [20 + i], [third if i == 0 else 9]], ASKED, config)
        for i in range(2)
    ]


def turn(config: RunConfig) -> TurnRequest:
    first = requests(config)[0]
    assert isinstance(first, TurnRequest)
    return first


def test_each_turn_follows_the_history_and_the_answer(config: RunConfig) -> None:
    thread = EngineThread(FakeEngine())
    found = thread.submit(requests(config)).result(timeout=20)
    thread.close()
    assert list(found) == ["0", "1"]
    whole = found["0"]
    assert isinstance(whole, Conversation)
    answers = [own.text for own in whole.turns]
    assert [own["role"] for own in whole.messages] == ["system", *("user", "assistant") * 3]
    assert [own["content"] for own in whole.messages if own["role"] == "assistant"] == answers
    assert (whole.text, whole.token_ids, whole.seed) == (answers[-1], whole.turns[-1].token_ids, 3)
    assert [own.seed for own in whole.turns] == [3, turn_seed(3, 1), turn_seed(3, 2)]
    encode = resolved_model(config).tokenizer.encode_as_text  # a fake engine's texts are not those of its tokens
    lengths = [2, 2 + len(encode(answers[0])) + 1]
    lengths.append(lengths[1] + len(encode(answers[1])) + 1)
    assert [own.prompt_tokens for own in whole.turns] == lengths, "the tail, 8, is there once"
    assert whole.prompt_tokens == sum(lengths)
    assert whole.stats.generated_tokens == sum(len(own.token_ids) for own in whole.turns)


class Notes(FakeEngine):
    """An engine of one slot that notes the order of its requests."""

    def __init__(self) -> None:
        super().__init__(slots=1)
        self.order: list[str] = []

    def add(self, request: Request) -> None:
        self.order.append(request.request_id)
        super().add(request)


def test_begun_conversations_are_before_new_rows(config: RunConfig) -> None:
    engine = Notes()
    thread = EngineThread(engine, slots=1)
    others = [replace(requests(config)[1], request_id=f"later {i}") for i in range(9)]
    thread.submit([requests(config)[0], *others]).result(timeout=20)
    thread.close()
    assert max(place for place, name in enumerate(engine.order) if name == "0") < 3 * 3, "and not after all others"


def test_a_turn_that_the_engine_refuses_fails_its_conversation_alone(config: RunConfig) -> None:
    thread = EngineThread(FakeEngine())
    found = thread.submit(requests(config, third=BANNED_TOKEN)).result(timeout=20)
    thread.close()
    assert found["0"] == Failure(
        error_class="RequestError", message=f"turn 3 of 3: token {BANNED_TOKEN} is banned here"
    )
    assert isinstance(found["1"], Conversation)


def test_an_error_of_a_turn_is_the_failure_of_the_whole(config: RunConfig) -> None:
    failed = turn(config).after(Generation(request_id="0", finish_reason=FinishReason.ERROR, error="no numbers"))
    assert failed == Failure(error_class="GenerationError", message="turn 1 of 3: no numbers")


@pytest.mark.parametrize(
    ("ids", "text", "reason", "kept"),
    [
        ((40, 41, 1), None, FinishReason.STOP, (40, 41)),
        ((40, 41), None, FinishReason.LENGTH, (40, 41)),
        ((40, 3, 1), None, FinishReason.LENGTH, (40, 3, 1)),
        ((), None, FinishReason.STOP, ()),
        ((40, 41, 42), "cut", FinishReason.STOP, None),
    ],
    ids=["a stop token is the template's", "cut at max_tokens", "special tokens inside stay", "empty", "a stop string"],
)
def test_the_history_has_the_generated_tokens(
    config: RunConfig, ids: tuple[int, ...], text: str | None, reason: FinishReason, kept: tuple[int, ...] | None
) -> None:
    tokenizer = resolved_model(config).tokenizer
    text = tokenizer.decode(ids) if text is None else text
    following = turn(config).after(Generation(request_id="0", token_ids=ids, text=text, finish_reason=reason))
    assert isinstance(following, TurnRequest)
    kept = tuple(tokenizer.encode(text)) if kept is None else kept
    assert following.prompt_token_ids == (7, *kept, 20, 8)


def test_reasoning_is_no_part_of_the_history(config: RunConfig) -> None:
    first = replace(turn(config), config=replace(config, reasoning_parser="think"))
    tokenizer = resolved_model(config).tokenizer
    ids = (*tokenizer.encode("<think>hm</think>\n\nyes"), 1)
    following = first.after(Generation(request_id="0", token_ids=ids, text=tokenizer.decode(ids),
                                       finish_reason=FinishReason.STOP))  # fmt: skip
    assert isinstance(following, TurnRequest)
    assert following.prompt_token_ids == (7, *tokenizer.encode("yes"), 20, 8)
    assert following.messages[-2:] == ({"role": "assistant", "content": "yes"}, ASKED[2])


def test_forked_processes_give_the_same_and_die_at_any_turn(config: RunConfig, tmp_path: Path) -> None:
    config = replace(config, output=str(tmp_path / "out"))
    Path(config.output).mkdir()
    storage = LocalStorage(config.output, layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    forks, thread = Forks(lambda: pickle.dumps((job, deadly_row_engine))), EngineThread(FakeEngine(slots=64))
    try:
        assert forks.submit(requests(config)).result() == thread.submit(requests(config)).result(timeout=20)
        with pytest.raises(ChildDiedError):
            forks.submit(requests(config, third=DEADLY_TOKEN)).result()
    finally:
        thread.close()
        forks.close()

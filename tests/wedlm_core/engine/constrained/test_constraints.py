"""Structured outputs: valid where they end, and the same tokens from every engine and strategy, and from the oracle.

No tolerance between ``verified`` and ``autoregressive``. The verified side runs in engines with small pages, prefill
chunks, preemption, overlapping forwards and other forms of the kernels; the autoregressive side in a roomy one.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from testing.engine.engines import COST, loaded, plain_decoder, run
from testing.engine.features import FEATURES
from testing.engine.grammar_oracle import allowed_by
from testing.engine.oracle import autoregressive
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.errors import RequestError
from wedlm_core.grammar import GrammarCompiler
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason, Generation, Request, SamplingParams

TIGHT = {"page_size": 4, "prefill_chunk": 5, "max_batch_rows": 99, "num_pages": 120, "max_num_seqs": 64}
ENGINES: dict[str, dict[str, Any]] = {
    "kernels": TIGHT,
    "by torch": {**TIGHT, "logits_chunk_rows": 7},
    "overlapping": {**TIGHT, "overlap": True},
    "traced": {**TIGHT, "trace": True},
}
WANTED = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
TOKENS = 40


@cache
def engine_of(folder: Path, name: str = "roomy") -> Engine:
    with plain_decoder() if name == "by torch" else nullcontext():
        return Engine(*loaded(folder), EngineConfig(max_window=16, step_cost=COST, **ENGINES.get(name, {})))


@cache
def compiler_of(folder: Path) -> GrammarCompiler:
    model, tokenizer = loaded(folder)
    return GrammarCompiler(tokenizer.to_json(), model.config.vocab_size, engine_of(folder).eos_token_ids)


@pytest.fixture(params=["tiny", "agreeing"])
def folder(request: pytest.FixtureRequest) -> Path:
    return resolve("tiny") if request.param == "tiny" else request.getfixturevalue("agreeing_folder")


def requests(folder: Path, strategy: str, temperature: float, **more: Any) -> list[Request]:
    """One request for each constraint."""
    prompt = tuple(loaded(folder)[1].encode("Bob is 31 years old and lives in Rome. To JSON:"))
    return [
        Request(
            request_id=name,
            prompt_token_ids=prompt[: 3 + number % 9],
            params=SamplingParams(max_tokens=TOKENS, temperature=temperature, strategy=strategy, logprobs=True,
                                  structured_outputs=wanted, **more),
            seed=number,
        )
        for number, (name, wanted) in enumerate(WANTED.items())
    ]  # fmt: skip


@cache
def plainly(folder: Path, temperature: float) -> dict[str, Generation]:
    done = run(engine_of(folder), requests(folder, "autoregressive", temperature))
    return {generation.request_id: generation for generation in done}


def fits(wanted: StructuredOutputs, text: str) -> bool:
    """Whether a complete output has the wanted form, judged by other libraries than the one that made it."""
    answer = text if wanted.after is None else text.partition(wanted.after)[2].strip()
    if wanted.schema is not None:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.validate(json.loads(answer), wanted.schema, jsonschema.Draft202012Validator, format_checker=checker)
        return True
    if wanted.regex is not None:
        return re.fullmatch(wanted.regex, answer) is not None
    return wanted.choice is None or answer in wanted.choice


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_ends_is_what_was_wanted(folder: Path, temperature: float) -> None:
    done = plainly(folder, temperature)
    text_of = loaded(folder)[1].decode
    ended = [name for name, one in done.items() if one.finish_reason is FinishReason.STOP]
    for name in ended:
        assert fits(WANTED[name], text_of(done[name].token_ids[:-1], skip_special_tokens=False)), (name, done[name])
    assert not [one.error for one in done.values() if one.error]
    assert len(ended) >= 60, "most of them end within the tokens that they have"


# Every constraint in the engine with the kernels of the oracle's; in each other engine a third of them, another third.
@pytest.mark.sweep(5)
@pytest.mark.parametrize(("number", "engine"), list(enumerate(ENGINES)))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_verified_is_autoregressive_token_for_token(folder: Path, number: int, engine: str, temperature: float) -> None:
    expected = plainly(folder, temperature)
    asked = requests(folder, "verified", temperature)
    accepted = 0
    for one in run(engine_of(folder, engine), asked[number - 1 :: 3] if number else asked):
        plain = expected[one.request_id]
        assert (one.token_ids, one.finish_reason) == (plain.token_ids, plain.finish_reason), one.request_id
        if engine in ("kernels", "traced"):  # the same kernels on both sides
            assert one.logprobs == plain.logprobs
        accepted += one.stats.grammar_drafts_accepted
    assert accepted > 0, "forced tokens are accepted"


def test_a_row_that_takes_the_library_much_work_ends_alone_as_it_does_in_a_batch() -> None:
    folder = resolve("tiny")
    words = {"type": "string", "minLength": 1, "maxLength": 800, "pattern": r"^$|(^(?:\S+\s+){0,5}\S+$)"}

    def asked(strategy: str) -> list[Request]:
        params = SamplingParams(max_tokens=40, temperature=1.2, strategy=strategy, structured_outputs={"json": words})
        prompt = tuple(loaded(folder)[1].encode("Write a short story about a fox."))
        return [Request(request_id=str(seed), prompt_token_ids=prompt, params=params, seed=seed) for seed in range(6)]

    alone = [run(Engine(*loaded(folder), EngineConfig(max_num_seqs=1)), [one])[0] for one in asked("autoregressive")]
    assert [one.error for one in alone] == [None] * 6
    for strategy in ("autoregressive", "verified"):
        together = run(Engine(*loaded(folder), EngineConfig(max_num_seqs=8)), asked(strategy))
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]


BOUNDED_ON_ONE_SIDE = [
    {"minimum": 10**15}, {"exclusiveMinimum": 2**53 - 1}, {"maximum": -(10**15)}, {"minimum": 1_500_000_000_000_000},
]  # fmt: skip


@pytest.mark.parametrize("bound", BOUNDED_ON_ONE_SIDE, ids=str)
def test_numbers_beyond_a_large_bound_end_in_range_in_every_row_of_a_batch(bound: dict[str, int]) -> None:
    folder = resolve("tiny")
    schema = {"type": "number", **bound}
    prompt = tuple(loaded(folder)[1].encode("Count from 3 to 9."))
    asked = [
        Request(request_id=f"{strategy} {seed}", prompt_token_ids=prompt, seed=seed,
                params=SamplingParams(max_tokens=100, temperature=3.0, strategy=strategy,
                                      structured_outputs={"json": schema}))
        for strategy in ("verified", "autoregressive") for seed in range(12)
    ]  # fmt: skip
    done = run(engine_of(folder), asked)
    assert [one.error for one in done] == [None] * 24
    ended = [one for one in done if one.finish_reason is FinishReason.STOP]
    assert len(ended) >= 12
    for one in ended:
        jsonschema.validate(json.loads(loaded(folder)[1].decode(one.token_ids[:-1])), schema)


def test_windows_that_a_forward_filled_by_an_older_plan_are_replaced(folder: Path) -> None:
    """Where forwards overlap, a plan may turn masks off while one is in flight that fills windows by the last plan."""
    expected, engine = plainly(folder, 1.0), engine_of(folder, "kernels")
    done, table = list[Generation](), engine._table
    for request in requests(folder, "verified", 1.0, window_size=4)[::4]:
        engine.add(request)
        while engine.has_work():
            done += engine.step()
            for planned in (table.masks, table.keep_valid, table.keep_stale):
                planned[:] = 0  # the device is not told of it
    assert len(done) > 10
    for one in done:
        plain = expected[one.request_id]
        assert (one.token_ids, one.finish_reason) == (plain.token_ids, plain.finish_reason), one.request_id


@pytest.mark.parametrize(("temperature", "kv"), [(0.0, "bfloat16"), (1.0, "int8")])
def test_in_eight_bits_too_verified_is_autoregressive_token_for_token(temperature: float, kv: str) -> None:
    folder, found = resolve("tiny"), {}
    for strategy, traits in (("autoregressive", {}), ("verified", TIGHT)):
        model = load_model(folder, weight_dtype="int8")
        narrow: dict[str, Any] = {"weight_dtype": "int8", "kv_cache_dtype": kv, **traits}
        engine = Engine(model, loaded(folder)[1], EngineConfig(max_window=16, step_cost=COST, **narrow))
        done = run(engine, requests(folder, strategy, temperature)[::3])
        found[strategy] = {one.request_id: (one.token_ids, one.logprobs, one.finish_reason) for one in done}
    assert found["verified"] == found["autoregressive"]


@pytest.mark.parametrize("name", ["kernels", "overlapping"])
def test_what_is_aborted_leaves_the_others_as_they_were(folder: Path, name: str) -> None:
    asked, expected = requests(folder, "verified", 1.0), plainly(folder, 1.0)
    engine, aborted, steps = engine_of(folder, name), set[str](), 0
    for request in asked:
        engine.add(request)
    done = list[Generation]()
    while engine.has_work():
        done += engine.step()
        steps += 1
        if steps % 3 == 0 and len(aborted) < 20:
            left = [one.request_id for one in asked if one.request_id not in aborted | {d.request_id for d in done}]
            aborted |= set(left[::9][:5])
            for one in left[::9][:5]:
                engine.abort(one)
    assert len(aborted) >= 15
    assert {one.request_id for one in done} == set(expected) - aborted
    for one in done:
        plain = expected[one.request_id]
        assert (one.token_ids, one.finish_reason) == (plain.token_ids, plain.finish_reason), one.request_id


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_of_a_matcher_that_is_run_anew_at_each_step(folder: Path, temperature: float) -> None:
    model, _ = loaded(folder)
    expected = plainly(folder, temperature)
    for request in requests(folder, "autoregressive", temperature)[:: 9 if temperature else 8]:
        wanted = request.params.structure
        assert wanted is not None
        grammar = compiler_of(folder).compile(wanted)
        eos = engine_of(folder).eos_token_ids
        found = autoregressive(
            model, request.prompt_token_ids, request.params, request.seed, eos, allowed=allowed_by(grammar)
        )
        assert found.token_ids == expected[request.request_id].token_ids, request.request_id
        assert found.finish_reason == expected[request.request_id].finish_reason


def test_forced_tokens_cost_no_forward_of_their_own() -> None:
    folder = resolve("tiny")
    wanted = StructuredOutputs(choice=["an answer that is much longer than any window that is drafted by masks"])
    (one,) = run(engine_of(folder), [Request(request_id="a", prompt_token_ids=(5, 6, 7), params=SamplingParams(
        max_tokens=200, structured_outputs=wanted))])  # fmt: skip
    assert one.text == wanted.choice[0] if wanted.choice else ""
    assert one.finish_reason is FinishReason.STOP
    assert one.stats.decode_forwards <= 1 + one.stats.generated_tokens // 30
    assert one.stats.grammar_drafts_accepted >= one.stats.generated_tokens - one.stats.decode_forwards - 1
    assert one.stats.mask_drafts_accepted == 0


FORMS: dict[str, dict[str, Any]] = {
    "inside of the forward": {},
    "by torch": {"logits_chunk_rows": 2},
    "by parts": {"logits_chunk_rows": 2},
    "overlapping": {"overlap": True},
    "traced": {"trace": True},
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("strategy", ["verified", "autoregressive"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_forced_is_certain_whatever_the_model_says(strategy: str, form: str) -> None:
    model, tokenizer = loaded(resolve("tiny"))
    with plain_decoder() if form == "by torch" else nullcontext():
        engine = Engine(model, tokenizer, EngineConfig(max_window=4, step_cost=COST, **FORMS[form]))
    wanted = StructuredOutputs(regex="the key is [0-9]{3}, the end is [a-z]{2} there")
    plain = SamplingParams(max_tokens=TOKENS, strategy=strategy, structured_outputs=wanted, logprobs=True)
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.9, "temperature": 1.0}, {"logprobs": 3}, {"presence_penalty": 0.5}]
    prompt = tuple(tokenizer.encode("What is the key?"))
    asked = [
        Request(request_id=str(kind), prompt_token_ids=prompt, params=replace(plain, **kind), seed=1) for kind in kinds
    ]
    for some in (asked, asked[:1], asked[1:2]):  # each in its own company
        for one in run(engine, some):
            assert one.finish_reason is FinishReason.STOP
            assert one.logprobs is not None
            pieces = [tokenizer.decode([token]) for token in one.token_ids[:-1]]
            text, certain = "", []
            for piece in pieces:
                inside = range(len(text), len(text) + len(piece))
                certain.append(not any(at in (*range(11, 14), *range(27, 29)) for at in inside))
                text += piece
            assert re.fullmatch(str(wanted.regex), text)
            assert [nats == 0.0 for nats in one.logprobs] == [*certain, True]
            assert one.stats.mean_entropy > 0
            for token, tops, sure in zip(one.token_ids, one.top_logprobs or (), [*certain, True], strict=False):
                assert tops == ((token, 0.0),) if sure else len(tops) == 3


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", [name for name in FEATURES if name != "min_tokens"])
def test_adjusted_rows_under_a_grammar_are_chosen_alike_in_every_form(name: str) -> None:
    """Also where an adjustment forbids the one token that the grammar allows."""
    asked = [
        replace(one, params=replace(one.params, **{**FEATURES[name], "min_tokens": 0}))
        for one in requests(resolve("tiny"), "verified", 1.0)[::5]
    ]
    expected = {one.request_id: one for one in run(engine_of(resolve("tiny")), asked)}
    for form, traits in FORMS.items():
        engine = Engine(*loaded(resolve("tiny")), EngineConfig(max_window=4, step_cost=COST, **traits))
        for one in run(engine, asked):
            other = expected[one.request_id]
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason), (form, one.request_id)
            if form != "step by step":  # whose attention adds in another order
                assert one.logprobs == other.logprobs, (form, one.request_id)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_what_is_forced_needs_no_logits(top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded(resolve("tiny"))
    engine, rows = Engine(model, tokenizer, EngineConfig(step_cost=COST)), list[int]()
    runner, choose = engine._runner.model_runner, engine._runner.choose
    draw, head = runner.draw, choose._head

    def drawn(*arguments: Any) -> Any:
        found = draw(*arguments)
        rows.append(found.logit_rows)
        return found

    def counted(hidden_RD: torch.Tensor) -> torch.Tensor:
        rows.append(hidden_RD.shape[0])
        return head(hidden_RD)

    monkeypatch.setattr(runner, "draw", drawn)
    monkeypatch.setattr(choose, "_head", counted)
    params = SamplingParams(
        max_tokens=TOKENS, strategy="autoregressive", temperature=1.0, top_p=top_p, logprobs=True,
        structured_outputs=StructuredOutputs(regex="the key is [0-9]{3}, the end is [a-z]{2} there"),
    )  # fmt: skip
    (one,) = run(engine, [Request(request_id="a", prompt_token_ids=(5, 6, 7), params=params)])
    assert one.logprobs is not None
    assert sum(rows) == sum(nats < 0 for nats in one.logprobs) < len(one.logprobs) // 2


def test_an_output_that_is_not_complete_has_no_stop() -> None:
    folder = resolve("tiny")
    params = SamplingParams(max_tokens=3, structured_outputs=WANTED["row of a table"])
    (one,) = run(engine_of(folder), [Request(request_id="a", prompt_token_ids=(5, 6, 7), params=params)])
    assert (one.finish_reason, one.error, len(one.token_ids)) == (FinishReason.LENGTH, None, 3)


@pytest.mark.parametrize("strategy", ["verified", "autoregressive"])
def test_a_grammar_that_other_rules_leave_nothing_of_fails_alone(strategy: str) -> None:
    folder = resolve("tiny")
    wanted = StructuredOutputs(choice=["yes"])
    banned = SamplingParams(structured_outputs=wanted, bad_words=["yes", "y", "ye"], strategy=strategy, max_tokens=9)
    plain = SamplingParams(structured_outputs=wanted, strategy=strategy, max_tokens=9)
    failed, fine = sorted(
        run(engine_of(folder), [Request(request_id=name, prompt_token_ids=(5, 6), params=params)
                                for name, params in (("a", banned), ("b", plain))]),
        key=lambda one: one.request_id,
    )  # fmt: skip
    assert (fine.text, fine.error) == ("yes", None)
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error is not None
    assert failed.error.startswith("structured_outputs.choice=('yes',): no token that the grammar allows was left")


@pytest.mark.parametrize("wanted", [{"choice": ["!"]}, {"regex": "[!?]{3}"}])
def test_a_word_that_is_banned_does_not_come_where_it_is_token_0(wanted: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(resolve("tiny"), tmp_path / "swapped")
    path = tmp_path / "swapped/tokenizer.json"
    words = json.loads(path.read_text())
    vocab = words["model"]["vocab"]
    (first,) = (word for word, number in vocab.items() if number == 0)
    vocab[first], vocab["!"] = vocab["!"], 0
    for added in words["added_tokens"]:
        added["id"] = vocab[added["content"]]
    path.write_text(json.dumps(words))
    tokenizer = Tokenizer.load(tmp_path / "swapped")
    assert tokenizer.decode([0]) == "!"
    engine = Engine(loaded(resolve("tiny"))[0], tokenizer, EngineConfig(max_window=16, step_cost=COST))
    for strategy in ("verified", "autoregressive"):
        params = SamplingParams(structured_outputs=StructuredOutputs(**wanted), bad_words=["!", "?"], max_tokens=9)
        (one,) = run(engine, [Request(request_id=strategy, prompt_token_ids=(5, 6), params=params)])
        assert (one.finish_reason, one.text) == (FinishReason.ERROR, "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems=True: this keyword would not be enforced"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "Unsatisfiable"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "nothing"}, "cannot be compiled"),
        ({"grammar": 'start: start "a"'}, "allows no output"),
    ],
)
def test_a_constraint_that_cannot_be_held_is_refused_before_it_runs(given: dict[str, Any], words: str) -> None:
    engine = engine_of(resolve("tiny"))
    params = SamplingParams(structured_outputs=given)
    with pytest.raises(RequestError, match=re.escape(words)):
        engine.add(Request(request_id="a", prompt_token_ids=(5,), params=params))
    assert not engine.has_work()

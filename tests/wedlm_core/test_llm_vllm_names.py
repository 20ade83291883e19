"""Names of vLLM work, or the error has the counterpart."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.engine.models import write_model
from testing.engine.refusals import assert_refused
from wedlm_core import LLM, CompletionOutput, ConfigError, EngineConfig, Generation, RequestError, SamplingParams
from wedlm_core.option_names import CALL_NAMES, ENGINE_NAMES, SAMPLING_NAMES

FEW = SamplingParams(max_tokens=5, window_size=4, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if tools %}tools {{ tools | length }}\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}quick\n{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_model(tmp_path_factory.mktemp("models") / "chatting", qwen3=True, seed=3)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return LLM(str(folder), device="cpu", max_window=8)


def test_prompts_of_every_form_give_the_same(llm: LLM) -> None:
    text = "Count from 3"
    ids = llm.get_tokenizer().encode(text)
    forms: list[Any] = [
        text,
        ids,
        {"prompt": text},
        {"prompt_token_ids": ids},
        {"prompt": text, "prompt_token_ids": ids},
    ]
    out = llm.generate(prompts=forms, sampling_params=FEW, use_tqdm=False)
    assert len({g.token_ids for g in out}) == 1
    assert [g.prompt for g in out] == [text, None, text, None, text]
    assert {g.prompt_token_ids for g in out} == {tuple(ids)}
    assert llm.generate({"prompt": text}, FEW)[0].token_ids == out[0].token_ids


def test_a_generation_has_outputs(llm: LLM) -> None:
    (one,) = llm.generate("Count", SamplingParams(max_tokens=5, logprobs=2, ignore_eos=True))
    (view,) = one.outputs
    assert isinstance(view, CompletionOutput)
    assert (view.text, view.token_ids, view.finish_reason, view.index) == (one.text, one.token_ids, "length", 0)
    assert view.logprobs is not None
    assert [set(place) >= {token} for place, token in zip(view.logprobs, one.token_ids, strict=True)] == [True] * 5
    assert view.logprobs[0][one.token_ids[0]].rank == 1, "greedy"
    assert view.cumulative_logprob == pytest.approx(sum(one.logprobs or ()))
    assert one.finished
    samples = llm.generate(["a", "b"], SamplingParams(max_tokens=2, n=2, temperature=1.0))
    assert [out.index for g in samples for out in g.outputs] == [0, 1, 0, 1], "each sample once"
    assert Generation(request_id="x").outputs[0].logprobs is None


def test_chat_takes_tools_and_variables_of_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    plain, quick, tooled, closed = (
        llm.chat(messages=messages, sampling_params=FEW, **options)[0].prompt
        for options in (
            {}, {"chat_template_kwargs": {"enable_thinking": False}}, {"tools": tools},
            {"add_generation_prompt": False},
        )
    )  # fmt: skip
    assert plain == "user:hi\nassistant:"
    assert quick == "user:hi\nquick\nassistant:"
    assert tooled == "user:hi\ntools 1\nassistant:"
    assert closed == "user:hi\n"
    assert llm.chat([messages, messages], [FEW, FEW])[1].prompt == plain
    for wrong in ({"messages": []}, {"tools": []}, [1], "x", {5: 1}):
        assert_refused(
            lambda w=wrong: llm.chat(messages, FEW, chat_template_kwargs=w), "^chat_template_kwargs=", (RequestError,)
        )  # fmt: skip


def test_chat_joins_parts_of_text(llm: LLM) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (found,) = llm.chat([{"role": "user", "content": parts}], FEW)
    assert found.prompt == "user:a\nb\nassistant:"
    image = {"type": "image_url", "image_url": {"url": "x"}}
    assert_refused(
        lambda: llm.chat([{"role": "user", "content": [*parts, image]}], FEW),
        r"^messages\.content=\"part of type 'image_url'\"", (RequestError,),
    )  # fmt: skip


def test_engine_settings_are_arguments(agreeing_folder: Path) -> None:
    llm = LLM(
        model=str(agreeing_folder), device="cpu", dtype="float", max_model_len=64, seed=7, gpu_memory_utilization=0.5,
        config=EngineConfig(max_window=8, seed=3),
    )  # fmt: skip
    config = llm.engine.config
    assert (config.max_model_len, config.seed, config.gpu_memory_utilization, config.max_window) == (64, 7, 0.5, 8)
    shown = repr(llm)
    assert all(word in shown for word in (agreeing_folder.name, "parameters", "float32", "cpu", "max_model_len=64"))
    assert "\n" not in shown


def test_a_length_that_the_model_was_not_made_for_is_refused_before_it_is_loaded() -> None:
    assert_refused(lambda: LLM("tiny", max_model_len=1025), "^max_model_len=1025: .*at most 1024", (ConfigError,))
    assert LLM("tiny", device="cpu", max_model_len=1024).engine.max_model_len == 1024


@pytest.mark.parametrize("name", [*ENGINE_NAMES, "max_num_seq", "gpu_memory_utilisation", "quite_another"])
def test_an_unknown_argument_of_an_engine_says_what_to_type(name: str) -> None:
    for refused in (lambda: LLM("tiny", **{name: 1}), lambda: EngineConfig(**{name: 1})):
        with pytest.raises(ConfigError, match=_message(name, ENGINE_NAMES, "max_num_seqs", "gpu_memory_utilization")):
            refused()


@pytest.mark.parametrize("name", [*SAMPLING_NAMES, "temprature", "max_token", "quite_another"])
def test_an_unknown_sampling_parameter_says_what_to_type(name: str) -> None:
    with pytest.raises(RequestError, match=_message(name, SAMPLING_NAMES, "temperature", "max_tokens")):
        SamplingParams(**{name: 1})


@pytest.mark.parametrize("name", [*CALL_NAMES, "sampling_parms", "use_tqmd", "quite_another"])
def test_an_unknown_argument_of_a_call_says_what_to_type(llm: LLM, name: str) -> None:
    for refused in (lambda: llm.generate("a", **{name: 1}), lambda: llm.chat([], **{name: 1})):
        with pytest.raises(RequestError, match=_message(name, CALL_NAMES, "sampling_params", "use_tqdm")):
            refused()


def _message(name: str, hints: Any, *near: str) -> str:
    """One line: the hint, the nearest name, or (for "quite_another") whatever there is."""
    remedy = re.escape(hints[name]) if name in hints else f"Did you mean '({'|'.join(near)})'"
    return f"^{name}=1: no such argument of [A-Za-z.]+\\. {'' if name.startswith('quite') else remedy}[^\n]*[.?]$"


def test_the_same_argument_twice_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"sampling_params=.*params is given too"):
        llm.generate("a", FEW, sampling_params=FEW)
    with pytest.raises(RequestError, match=r"messages=.*conversations is given too"):
        llm.chat([], messages=[])


def test_values_that_vllm_has_for_none() -> None:
    params = SamplingParams(top_k=-1, stop=None, stop_token_ids=None, bad_words=None, logit_bias=None, logprobs=None)  # type: ignore[arg-type]
    assert params == SamplingParams()
    assert SamplingParams(logit_bias={"7": 1, 3: -2.5}).bias_pairs == ((3, -2.5), (7, 1.0))  # type: ignore[dict-item]
    assert SamplingParams(logprobs=0).logprobs is True
    assert SamplingParams(logprobs=True).top_logprobs == 0
    assert SamplingParams(logprobs=1).top_logprobs == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "prompts", "use_tqdm", "shows"),
    [(Terminal, 20, None, True), (Terminal, 3, None, False), (io.StringIO, 20, None, False),
     (Terminal, 20, False, False), (io.StringIO, 1, True, True)],
)  # fmt: skip
def test_a_bar_is_shown_for_long_lists_where_someone_looks(
    llm: LLM, stream: Any, prompts: int, use_tqdm: bool | None, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = stream()
    monkeypatch.setattr(sys, "stderr", terminal)
    llm.generate([[5, 6]] * prompts, SamplingParams(max_tokens=1, window_size=1), use_tqdm=use_tqdm)
    assert (f"{prompts}/{prompts}" in terminal.getvalue()) == shows
    assert bool(terminal.getvalue()) == shows

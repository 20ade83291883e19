"""The player's texts and steps follow from a trace, in the scripts that browsers run."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import replace
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from pipeline.reporting.traces import MASK, Forward, RowTrace, all_tokens, check_of, forwards_of, pieces_of, player_data
from wedlm_core.llm import LLM
from wedlm_core.tokenizer import TextStream
from wedlm_core.types import SamplingParams

STRATEGIES = ("verified", "reference", "streaming", "blockwise", "autoregressive")
PROMPTS = ("Count from 3 to 9.", "Solve 3x + 4 = 25.", "Write a short poem about snow.")


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.fixture(scope="module")
def traced(tiny: LLM) -> dict[str, list[RowTrace]]:
    """Real traces of the shipped model, by strategy."""
    return {strategy: [trace_of(tiny, prompt, strategy) for prompt in PROMPTS] for strategy in STRATEGIES}


def trace_of(llm: LLM, prompt: str, strategy: str) -> RowTrace:
    params = SamplingParams(max_tokens=48, window_size=8, strategy=strategy)
    with llm.engine.traced(2, 128):
        own, plain = llm.generate([prompt] * 2, [params, replace(params, strategy="autoregressive")])
    forwards = forwards_of(own.trace or (), own.prompt_tokens)
    tokens = {*all_tokens(forwards), *plain.token_ids}
    return RowTrace(
        row_id="r", sample_index=0, strategy=strategy, prompt=prompt, window=8,
        tokens=len(own.token_ids),
        pieces=pieces_of(own.token_ids, TextStream(llm.tokenizer).push, own.text),
        token_ids=own.token_ids, whole=True, same=True, forwards=forwards, plain_ids=plain.token_ids,
        plain_pieces=pieces_of(plain.token_ids, TextStream(llm.tokenizer).push, plain.text),
        vocabulary={t: llm.tokenizer.decode([t], skip_special_tokens=False) for t in tokens},
    )  # fmt: skip


class Script:
    """The player's functions, with a trace."""

    def __init__(self, trace: RowTrace) -> None:
        self._engine = MiniRacer()
        source = (importlib.resources.files("pipeline.reporting") / "assets" / "player.js").read_text("utf-8")
        self._engine.eval(f"{source}; globalThis.P = wedlmPlayer; globalThis.trace = {json.dumps(player_data(trace))};")

    def __call__(self, expression: str) -> Any:
        return json.loads(self._engine.eval(f"JSON.stringify({expression} ?? null)"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_frame_shows_the_committed_text_and_the_last_one_the_whole(
    traced: dict[str, list[RowTrace]], strategy: str
) -> None:
    for trace in traced[strategy]:
        script = Script(trace)
        last = script("P.lastFrame(trace)")
        assert last == 2 * max(len(trace.forwards), len(trace.plain_ids))
        for frame in range(last + 1):
            shown = script(f"P.cells(trace, {frame})")
            count = script(f"P.committedBy(trace, {frame})")
            assert [cell["position"] for cell in shown] == list(range(len(shown))), "places follow each other"
            assert "".join(c["text"] for c in shown[:count]) == "".join(trace.pieces[:count])
            assert {c["kind"] for c in shown[:count]} <= {"done", "accepted", "decided", "replaced"}
            assert {c["kind"] for c in shown[count:]} <= {"draft", "mask", "filled", "stale"}
            plain = script(f"P.plainCells(trace, {frame})")
            assert len(plain) <= frame // 2 + 1, "one token a forward"
        assert script(f"P.textOf(P.cells(trace, {last}))") == "".join(trace.pieces)
        assert script(f"P.textOf(P.plainCells(trace, {last}))") == "".join(trace.plain_pieces)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_forward_begins_where_the_last_one_ended(traced: dict[str, list[RowTrace]], strategy: str) -> None:
    for trace in traced[strategy]:
        committed: list[int] = []
        for forward in trace.forwards:
            assert forward.at == len(committed)
            committed += forward.committed
            assert all(forward.window[place] == MASK for place, _ in forward.filled if place < len(forward.window))
        assert tuple(committed) == trace.token_ids


def test_verified_commits_what_autoregressive_decoding_does_in_fewer_forwards(
    traced: dict[str, list[RowTrace]],
) -> None:
    for trace in traced["verified"]:
        assert trace.token_ids == trace.plain_ids
        assert len(trace.forwards) < len(trace.plain_ids)


def made(**fields: Any) -> RowTrace:
    """Two drafts, the second wrong, and two masks."""
    forwards = (
        Forward(at=0, rows=3, window=(MASK, MASK), committed=(1,), filled=((0, 1), (1, 2))),
        Forward(at=1, rows=5, window=(2, 9, MASK, MASK), committed=(2, 3), filled=((2, 4), (3, 5))),
        Forward(at=3, rows=3, window=(4, 5), committed=(4, 5), filled=()),
    )
    base = RowTrace(
        row_id="r", sample_index=0, strategy="verified", prompt="p", window=2, tokens=5,
        pieces=tuple("abcde"), token_ids=(1, 2, 3, 4, 5), whole=True, same=True, forwards=forwards,
        plain_ids=(1, 2, 3, 4, 5), plain_pieces=tuple("abcde"),
        vocabulary={1: "a", 2: "b", 3: "c", 4: "d", 5: "e", 9: "x"},
    )  # fmt: skip
    return replace(base, **fields)


def test_drafts_are_accepted_replaced_or_stale_and_masks_are_filled() -> None:
    script = Script(made())
    kinds = [[cell["kind"] for cell in script(f"P.cells(trace, {frame})")] for frame in range(6)]
    assert kinds == [
        ["mask", "mask"],
        ["decided", "filled"],
        ["done", "draft", "draft", "mask", "mask"],
        ["done", "accepted", "replaced", "filled", "filled"],
        ["done", "done", "done", "draft", "draft"],
        ["done", "done", "done", "accepted", "accepted"],
    ]
    assert script("P.cells(trace, 3)[2].before") == "x"


def test_each_frame_is_said_in_words() -> None:
    script = Script(made())
    said = [script(f"P.describe(trace, {frame})") for frame in range(script("P.lastFrame(trace)") + 1)]
    assert said[2] == "Forward 2 computes 5 rows at once: 2 drafts, 2 masks, the last token."
    assert said[3] == "Forward 2: 1 of 2 drafts accepted, 2 tokens committed, 2 masks filled."
    assert said[5] == "Forward 3: 2 of 2 drafts accepted, 2 tokens committed, 0 masks filled."
    assert said[7] == "WeDLM is done since forward 3. Autoregressive decoding goes on, one token a forward."
    assert said[-1].startswith(
        "Done. WeDLM took 3 forwards for 5 tokens, autoregressive decoding 5 forwards: 1.7 times"
    )


def test_fills_out_of_order_are_counted() -> None:
    forward = Forward(at=0, rows=4, window=(MASK,) * 4, committed=(), filled=((1, 2), (3, 4)))
    after = Forward(at=0, rows=4, window=(MASK, 2, MASK, 4), committed=(1, 2, 3, 4), filled=((0, 1), (2, 3)))
    script = Script(made(strategy="reference", forwards=(forward, after)))
    assert script("P.describe(trace, 1)") == "Forward 1: 0 tokens committed, 2 masks filled."
    assert script("P.describe(trace, 2)").endswith("computes 4 rows at once: 2 filled places, 2 masks.")


def test_pieces_join_to_the_text_whatever_a_stop_string_or_a_broken_character_does() -> None:
    def push(ids: Any) -> str:
        return {1: "ab", 2: "", 3: "cd"}[ids[0]]

    assert pieces_of((1, 2, 3), push, "abcd") == ("ab", "", "cd")
    assert pieces_of((1, 2, 3), push, "abc") == ("ab", "", "c")
    assert pieces_of((1, 2), push, "ab\ufffd") == ("ab", "\ufffd")
    assert pieces_of((1, 3), push, None) == ("ab", "cd")


def test_the_page_says_whether_the_tokens_are_those_of_the_output() -> None:
    assert check_of(made()) == ("Checked: all 5 tokens are those of the output. They equal autoregressive decoding's.")
    assert "the first 5 of 9 tokens are those" in check_of(made(whole=False, tokens=9))
    assert check_of(made(same=False)).startswith("These tokens are not those of the output.")
    assert "could not be compared" in check_of(made(same=None))
    assert "They differ from autoregressive decoding's." in check_of(made(plain_ids=(1, 9)))


def test_rows_are_sorted_by_number_or_name_and_found_by_all_words() -> None:
    engine = MiniRacer()
    engine.eval((importlib.resources.files("pipeline.reporting") / "assets" / "rows.js").read_text("utf-8"))

    def result(expression: str) -> Any:
        return json.loads(engine.eval(f"JSON.stringify({expression})"))

    assert result('["0.9", "0.12", "1.2e-7", "10"].sort(wedlmRows.compare)') == ["1.2e-7", "0.12", "0.9", "10"]
    assert result('["a.jsonl:10", "a.jsonl:9", "B"].sort(wedlmRows.compare)') == ["a.jsonl:9", "a.jsonl:10", "B"]
    assert result('wedlmRows.matches("in.jsonl:3 The Sum is 7", "sum IN")') is True
    assert result('wedlmRows.matches("in.jsonl:3 The Sum is 7", "sum 8")') is False
    assert result('wedlmRows.matches("anything", "")') is True


def test_a_trace_survives_json_and_foreign_text_stays_text() -> None:
    trace = made(row_id="</script><b>", prompt="</script>", vocabulary={1: "</script>"})
    stored = {**json.loads(json.dumps(trace.to_dict())), "of_another_version": 1}
    assert RowTrace.from_dict(stored) == trace

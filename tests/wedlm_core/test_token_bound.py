"""A text has at least as many tokens as its bound says; a text that is far too long is refused without encoding it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pipeline.codec import SamplingParams
from pipeline.commands.preview import preview
from pipeline.config import RunConfig
from wedlm_core import LLM
from wedlm_core.errors import RequestError
from wedlm_core.token_bound import TokenBound
from wedlm_core.tokenizer import Tokenizer

MEGABYTE = 1_000_000
ODD = ["a", " ", "\n", "Count ", "é", "e\u0301", "\u1100\u1161\u11a8", "😀", "<|im_end|>", "\ud55c"]


@pytest.fixture(scope="module")
def tokenizer(qwen3_folder: Path) -> Tokenizer:
    return Tokenizer.load(qwen3_folder)


@pytest.fixture(scope="module")
def backend(qwen3_folder: Path) -> Callable[[], Backend]:
    return lambda: Backend.from_file(str(qwen3_folder / "tokenizer.json"))


def texts(backend: Backend, count: int) -> list[str]:
    choose, vocabulary = random.Random(3), [backend.decode([i]) for i in range(backend.get_vocab_size())]
    kinds = (
        lambda: "".join(choose.choices(vocabulary, k=choose.randrange(800))),
        lambda: "".join(choose.choices(ODD, k=choose.randrange(800))),
        lambda: choose.choice(ODD + vocabulary) * choose.randrange(800),
    )
    return [choose.choice(kinds)() for _ in range(count)]


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=str)
def test_no_text_has_fewer_tokens_than_its_bound(backend: Callable[[], Backend], normalizer: object) -> None:
    own = backend()
    if normalizer is not None:
        own.normalizer = normalizer
    bound, refused = TokenBound(own), 0
    for text in texts(own, 150):
        found = len(own.encode(text, add_special_tokens=False).ids)
        for limit in (1, 10, 100):
            assert bound.least(text, limit) <= found
            refused += found > 20 * limit and bound.least(text, limit) > limit
    assert refused > 100, "most texts that are far too long are found to be"


STEPS: dict[str, Callable[[Backend], object]] = {
    "letters vanish": lambda own: setattr(own, "normalizer", normalizers.StripAccents()),
    "spaces vanish": lambda own: setattr(own, "pre_tokenizer", pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])),
    "a piece vanishes": lambda own: setattr(own, "pre_tokenizer", pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("a+"), "removed"), pre_tokenizers.ByteLevel()])),
    "a token takes spaces": lambda own: own.add_special_tokens([AddedToken("<|x|>", lstrip=True)]),
    "no bytes": lambda own: setattr(own, "model", models.BPE(vocab={"a": 0, "<u>": 1}, merges=[], unk_token="<u>")),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_tokenizer_that_may_drop_text_has_no_bound(backend: Callable[[], Backend], step: str) -> None:
    own = backend()
    assert TokenBound(own).least("a " * 5000, 10) > 10
    STEPS[step](own)
    assert TokenBound(own).least("a " * 5000, 10) == 0


@pytest.fixture(scope="module")
def llm(qwen3_folder: Path) -> LLM:
    return LLM(str(qwen3_folder))


@pytest.mark.parametrize("text", ["a", "Count from 3 to 9. ", " ", "é"])
def test_a_prompt_of_five_megabytes_is_refused_within_a_second(llm: LLM, text: str) -> None:
    prompt = text * (5 * MEGABYTE // len(text))
    begin = time.process_time()
    with pytest.raises(RequestError, match=r"^prompt \+ max_tokens='at least \d+': at most max_model_len = 512"):
        llm.generate([prompt], SamplingParams(max_tokens=2))
    assert time.process_time() - begin < 1


def test_a_row_of_five_megabytes_fails_alone(qwen3_folder: Path) -> None:
    rows = [{"prompt": "Count. " * (5 * MEGABYTE // 7)}, {"prompt": "Count."}]
    config = RunConfig(input=rows, output="unused", model=str(qwen3_folder), sampling=SamplingParams(max_tokens=2))
    long, short = preview(config, rows=2).to_pylist()
    assert "prompt + max_tokens='at least" in long["error"]
    assert short["error"] is None


def test_a_prompt_that_fits_is_never_refused(tokenizer: Tokenizer) -> None:
    for text in texts(tokenizer._backend, 60):
        tokens = len(tokenizer.encode(text))
        assert tokenizer.least_tokens(text, tokens) <= tokens

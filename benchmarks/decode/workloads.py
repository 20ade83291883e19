"""Workloads of the decoding benchmarks: two models, regimes of entropy, any concurrency."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.decode.passes import Workload
from benchmarks.decode.random_model import LONG_TEMPERATURES, TEMPERATURES, random_model_folder
from testing import toy
from testing.toy import REGIMES
from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.model.sources import resolve

MODELS = ("tiny", "random-25m")
MAX_SEQUENCES = 64
LONG = EngineConfig(max_num_seqs=MAX_SEQUENCES, max_model_len=2048, kv_cache_bytes=2 << 30)
"""Engine configuration with room for 64 prompts of 1,500 tokens of ``random-25m`` (15 KB per token)."""
_TINY_TOKENS = 192
_TINY_TEMPERATURES = {"low": 0.0, "medium": 0.0, "high": 1.0}
_RANDOM_TOKENS = (32, 96)  # of different lengths: in no real job do all outputs end in the same forward
_LONG_PROMPT = 1536
_SHARE = 96  # number of problems per regime


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in an engine with room for 64 sequences.

    Attributes:
        name: one of :data:`MODELS`.
        llm: the model and engine for all points of a benchmark.
    """

    name: str
    llm: LLM


@contextmanager
def open_subject(name: str, config: EngineConfig | None = None) -> Iterator[Subject]:
    """Load one of :data:`MODELS` in float32 on CPU.

    Passes repeat their prompts: drafts from history would be the text of an earlier pass, as in no job.
    """
    config = config or EngineConfig(max_num_seqs=MAX_SEQUENCES, prefix_caching=False, max_model_len=1024)
    config = replace(config, history_drafts=False)
    if name == "tiny":
        yield Subject(name=name, llm=LLM(str(resolve("tiny")), config=config, device="cpu"))
        return
    with random_model_folder("25m") as folder:
        yield Subject(name=name, llm=LLM(str(folder), config=config, device="cpu"))


def regimes_of(subject: Subject) -> Sequence[str]:
    """Low, medium and high entropy; for random weights also ``hostile``, where drafts are hardly ever accepted."""
    return tuple(REGIMES) if subject.name == "tiny" else tuple(TEMPERATURES)


def held_out_problems(regime_name: str, count: int) -> list[toy.Problem]:
    """Problems of the test split, from the families in turn; repeated if there are too few."""
    families = REGIMES[regime_name]
    each = -(-min(count, _SHARE) // len(families))
    found = [toy.distinct(family, "test", each) for family in families]
    turns = [own[i] for i in range(each) for own in found if i < len(own)]
    return [turns[i % len(turns)] for i in range(count)]


def prompts_of(llm: LLM, problems: Sequence[toy.Problem]) -> list[list[int]]:
    """Token ids of the prompts, every second one in the chat template."""
    chat = llm.tokenizer.apply_chat_template
    return [
        llm.tokenizer.encode(p.prompt) if i % 2 else chat([{"role": "user", "content": p.prompt}])
        for i, p in enumerate(problems)
    ]


def regime(subject: Subject, name: str, concurrency: int) -> Workload:
    """Prompts of one regime: for ``tiny`` 12 times the concurrency, decoded to the end of sequence; else 3 times."""
    tiny = subject.name == "tiny"
    count = max(12 * concurrency, 32) if tiny else max(3 * concurrency, 8)
    # For random weights the prompt does not matter, so "hostile" uses the prompts of "high".
    prompts = prompts_of(subject.llm, held_out_problems(name if name in REGIMES else "high", count))
    return Workload(prompts=prompts, params=[_params(subject, name, i) for i in range(count)], concurrency=concurrency)


def after_long_prompts(subject: Subject, name: str, concurrency: int) -> Workload:
    """Random prompts of about 1,500 tokens each (:data:`LONG`), with at least two samples of each prompt.

    All tokens of a prompt but the last fill whole pages. So once it was prefilled, prefix caching leaves only decoding
    to be timed.
    """
    page, draw = subject.llm.engine.config.page_size, random.Random(0)
    lengths = [page * round(size / page) + 1 for size in (_LONG_PROMPT - page, _LONG_PROMPT, _LONG_PROMPT + page)]
    prompts = [[draw.randrange(4, 1000) for _ in range(draw.choice(lengths))] for _ in range(concurrency)]
    count = max(2 * concurrency, 8)
    return Workload(
        prompts=[prompts[i % concurrency] for i in range(count)],
        params=[_random_params(LONG_TEMPERATURES[name], i) for i in range(count)],
        concurrency=concurrency,
    )


def _params(subject: Subject, name: str, number: int) -> SamplingParams:
    if subject.name == "tiny":
        return SamplingParams(max_tokens=_TINY_TOKENS, temperature=_TINY_TEMPERATURES[name])
    return _random_params(TEMPERATURES[name], number)


def _random_params(temperature: float, number: int) -> SamplingParams:
    least, most = _RANDOM_TOKENS
    # Steps of a prime: neighbours differ, and all lengths are about equally frequent.
    length = least + 13 * number % (most - least + 1)
    return SamplingParams(max_tokens=length, temperature=temperature, ignore_eos=True)

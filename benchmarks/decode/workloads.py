"""What the decoding benchmarks decode: two models, their regimes of entropy, any number of sequences at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.decode.models import LONG_TEMPERATURES, TEMPERATURES, random_model_folder
from benchmarks.decode.passes import Workload
from jobs.evaluate import MAX_TOKENS
from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.model.sources import resolve
from wedlm_core.training import corpus
from wedlm_core.training.evaluation import REGIMES

__all__ = ["LONG", "MODELS", "MOST_SEQUENCES", "Subject", "behind_long_prompts", "held_out_problems", "mixed",
           "open_subject", "prompts_of", "regime", "regimes_of"]  # fmt: skip

MODELS = ("tiny", "random-25m")
MOST_SEQUENCES = 64
LONG = EngineConfig(max_num_seqs=MOST_SEQUENCES, max_model_len=2048, kv_cache_bytes=2 << 30)
"""An engine that keeps the KV of 64 prompts of 1,500 tokens of ``random-25m`` (15 KB a token)."""
_TINY_TEMPERATURES = {"low": 0.0, "medium": 0.0, "high": 1.0}
_RANDOM_TOKENS = (32, 96)  # outputs of one length would all end in the same forward, which no job does
_LONG_PROMPT = 1536
_SHARE = 96  # problems per regime to choose from


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in an engine with room for 64 sequences.

    Attributes:
        name: one of :data:`MODELS`.
        llm: the engine; every point of a benchmark runs on this one.
    """

    name: str
    llm: LLM


@contextmanager
def open_subject(name: str, config: EngineConfig | None = None) -> Iterator[Subject]:
    """Load one of the models, float32, on the CPU."""
    config = config or EngineConfig(max_num_seqs=MOST_SEQUENCES, prefix_caching=False, max_model_len=1024)
    if name == "tiny":
        yield Subject(name=name, llm=LLM(str(resolve("tiny")), config=config, device="cpu"))
        return
    with random_model_folder() as folder:
        yield Subject(name=name, llm=LLM(str(folder), config=config, device="cpu"))


def regimes_of(subject: Subject) -> Sequence[str]:
    """Low, medium and high entropy; for random weights also ``hostile``, where drafts are hardly ever right."""
    return REGIMES if subject.name == "tiny" else tuple(TEMPERATURES)


def held_out_problems(regime_name: str, count: int) -> list[corpus.Problem]:
    """Problems of the test split, families taking turns; repeated from the start where there are too few."""
    families = [f for f in corpus.FAMILIES.values() if f.regime == regime_name]
    each = -(-min(count, _SHARE) // len(families))
    found = [corpus.distinct(family.name, "test", each) for family in families]
    turns = [own[i] for i in range(each) for own in found if i < len(own)]
    return [turns[i % len(turns)] for i in range(count)]


def prompts_of(llm: LLM, problems: Sequence[corpus.Problem]) -> list[list[int]]:
    """Token ids, every other problem through the chat template."""
    chat = llm.tokenizer.apply_chat_template
    return [
        llm.tokenizer.encode(p.prompt) if i % 2 else chat([{"role": "user", "content": p.prompt}])
        for i, p in enumerate(problems)
    ]


def regime(subject: Subject, name: str, concurrency: int) -> Workload:
    """Prompts of one regime: for ``tiny`` twelve times as many as sequences at once, to their end; else three times."""
    tiny = subject.name == "tiny"
    count = max(12 * concurrency, 32) if tiny else max(3 * concurrency, 8)
    # To random weights one prompt is like another: those of "high" stand for what no trained model shows.
    prompts = prompts_of(subject.llm, held_out_problems(name if name in REGIMES else "high", count))
    return Workload(prompts=prompts, params=[_params(subject, name, i) for i in range(count)], concurrency=concurrency)


def mixed(subject: Subject, concurrency: int) -> Workload:
    """The three regimes in turn."""
    parts = [regime(subject, name, concurrency) for name in REGIMES]
    count = len(parts[0].prompts)
    order = [(parts[i % 3], i) for i in range(count)]
    return Workload(
        prompts=[part.prompts[i] for part, i in order],
        params=[part.params[i] for part, i in order],
        concurrency=concurrency,
    )


def behind_long_prompts(subject: Subject, name: str, concurrency: int) -> Workload:
    """Random prompts of about 1,500 tokens each (:data:`LONG`), two samples of each prompt at least.

    All but a prompt's last token fill whole pages: once a prompt was prefilled, prefix caching leaves only decoding to
    be timed, each sequence reading KV of its own.
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
        return SamplingParams(max_tokens=MAX_TOKENS, temperature=_TINY_TEMPERATURES[name])
    return _random_params(TEMPERATURES[name], number)


def _random_params(temperature: float, number: int) -> SamplingParams:
    least, most = _RANDOM_TOKENS
    # Steps of a prime: neighbours differ, and each length comes about equally often.
    length = least + 13 * number % (most - least + 1)
    return SamplingParams(max_tokens=length, temperature=temperature, ignore_eos=True)

"""GPU minutes: outputs under a schema against free outputs, with a vocabulary of 151,936 tokens."""

from __future__ import annotations

import itertools
import statistics
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.decode.random_model import random_decoder
from benchmarks.decode.structured_outputs import LONG_KEYS, WAYS, Subject, number_of, passage
from benchmarks.decode.turns import Passage, take_turns
from benchmarks.gpu.section import Report, Scene
from wedlm_core import EngineConfig
from wedlm_core.cache import writable_cache
from wedlm_core.engine import Engine
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

_ROUNDS = 3
_PROMPT = 64
_LARGE = 100_000  # a vocabulary that the large tokenizer serves
_VOCABULARY = 151_936


def structured(scene: Scene) -> Report:
    """Race verified and autoregressive decoding under a schema with long keys, and free autoregressive decoding."""
    scale, ids = scene.scale, itertools.count()
    batches = [batch for batch in scale.batches if batch <= scale.host_batch]
    if not batches:
        given = ", ".join(map(str, scale.batches))
        raise ValueError(f"batches {given}: structured output is measured with {scale.host_batch} sequences at most")
    engine = _engine(scene, max(batches))
    rows = []
    for batch in batches:
        if scene.clock.left < 0:
            rows.append({"sequences": batch, "decoding": "not measured: the section's time was over"})
            continue
        found = [_round(engine, batch, turn, ids) for turn in range(_ROUNDS + 1)][1:]
        for way in found[0]:
            speeds = [1 / one[way].seconds_per_token for one in found]
            done = [generation for one in found for generation in one[way].done]
            tokens = sum(len(one.token_ids) for one in done)
            rows.append({
                "sequences": batch, "decoding": way, "tokens/s": f"{statistics.median(speeds):.0f}",
                "over rounds": f"{min(speeds):.0f} to {max(speeds):.0f}",
                "tokens/forward": f"{tokens / sum(one.stats.decode_forwards for one in done):.2f}",
                "share forced": f"{sum(one.stats.grammar_drafts_accepted for one in done) / tokens:.2f}",
                "over free autoregressive": f"{_ratio(found, way, WAYS[1]):.2f}",
            })  # fmt: skip
            print(*rows[-1].values(), sep=" | ", flush=True)
    notes = (
        f"{scale.name}; outputs of a schema with long keys; a round has two for each sequence at once. Medians of "
        f"{_ROUNDS} rounds; ratios are taken within a round. Free outputs have the same lengths. Masks of the grammar "
        "are computed by threads of the host while the model runs, and travel as bits."
    )
    return Report(title="Structured output", notes=notes, rows=rows)


_Found = Mapping[str, Passage]


def _round(engine: Engine, batch: int, turn: int, ids: Iterator[int]) -> _Found:
    """Decode in each way, one after the other."""
    numbers = range(2 * batch)
    prompts = [tuple(10 + (number + turn + 7 * i) % 900 for i in range(_PROMPT)) for number in numbers]
    one = Subject(engines=dict.fromkeys(WAYS, engine), prompts=prompts, answers=(), schema=LONG_KEYS, tokens=112)

    def decode(way: str, lengths: Mapping[int, int]) -> Passage:
        through = passage(one, way, numbers, batch, lengths, ids)
        take_turns([through])
        return through

    found = {WAYS[2]: decode(WAYS[2], {})}
    lengths = {number_of(done): len(done.token_ids) for done in found[WAYS[2]].done}
    return found | {WAYS[0]: decode(WAYS[0], lengths), WAYS[1]: decode(WAYS[1], lengths)}


def _ratio(found: Sequence[_Found], way: str, other: str) -> float:
    return statistics.median(one[other].seconds_per_token / one[way].seconds_per_token for one in found)


def _engine(scene: Scene, most: int) -> Engine:
    scale = scene.scale
    if scale.config.vocab_size < _LARGE:
        tokenizer = Tokenizer.load(resolve("tiny"))
        config = replace(scale.config, eos_token_ids=tokenizer.eos_token_ids)
    else:
        from transformers import PreTrainedTokenizerFast

        tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=_large(), eos_token="<|end|>"), (0,))
        config = replace(scale.config, eos_token_ids=(0,))
    model = random_decoder(config, device=scene.device, dtype=scale.dtype, max_positions=1024)
    quantise(model, scene.weight_dtype)
    settings = EngineConfig(max_num_seqs=most, max_model_len=512, weight_dtype=scene.weight_dtype)
    return Engine(model, tokenizer, settings)


def _large() -> object:
    """The large tokenizer, trained once."""
    from tokenizers import Tokenizer as Plain

    path = writable_cache("benchmarks") / f"tokenizer-{_VOCABULARY}.json"
    if not path.exists():
        path.write_text(_trained(), encoding="utf-8")
    return Plain.from_str(path.read_text(encoding="utf-8"))


def _trained(megabytes: int = 40) -> str:
    """A byte-level BPE of :data:`_VOCABULARY` tokens, trained on the sources of installed packages."""
    from tokenizers import Tokenizer as Plain
    from tokenizers import decoders, models, pre_tokenizers, trainers

    def texts() -> Iterator[str]:
        left = megabytes << 20
        for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
            text = path.read_text("utf-8", "ignore")
            left -= len(text)
            if left < 0:
                return
            yield text

    plain = Plain(models.BPE())
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY - 8, special_tokens=["<|end|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  max_token_length=48)  # fmt: skip
    plain.train_from_iterator(texts(), trainer)
    return plain.to_str()

"""GPU minutes: drafts from history on random weights that repeat themselves, as templates do.

A fixed order of long cycles gives each token a successor, and the head's row for the successor is the token's
embedding. Attention and the gates add nearly nothing (zeros would run faster). So the next token is a function of the
last one, and rows share spans; the temperature sets how often a chain breaks. Steps cost as much as with usual weights.
Drafts of masks are useless here, so autoregressive decoding is the baseline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.decode.random_model import random_decoder
from benchmarks.gpu.jobs import Done, run_job
from benchmarks.gpu.section import Report, Scene
from wedlm_core import EngineConfig, SamplingParams
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

_NEARLY_NOTHING = 1e-3
_LOGIT = 12.0  # logit of the successor; other logits are about 1
_TEMPERATURES = (0.6, 0.9)
_SPANS = 16  # first tokens of rows, so that rows share chains


@torch.no_grad()
def repeating_decoder(scene: Scene) -> Decoder:
    """A random decoder whose next token follows from the last one."""
    config = replace(scene.scale.config, tie_word_embeddings=False)
    model = random_decoder(config, device=scene.device, dtype=scene.scale.dtype, max_positions=2048)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.mul_(_NEARLY_NOTHING)
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(1)).to(scene.device)
    model.lm_head.weight[order.roll(-1)] = model.embed.weight[order]
    model.norm.weight.fill_(_LOGIT / config.hidden_size)
    return model


def history(scene: Scene) -> Report:
    """Race ``verified`` with drafts from history, without them, and autoregressive decoding."""
    scale, rows = scene.scale, []
    large = scene.device.type == "cuda"
    batches, new = ((32, 64), 256) if large else ((2,), 24)
    model = quantise(repeating_decoder(scene), scene.weight_dtype)
    engines = {drafts: _engine(scene, model, max(batches), new, drafts=drafts) for drafts in (True, False)}
    for temperature in _TEMPERATURES:
        for at_once in batches:
            found: dict[str, Done] = {}
            for way, drafts in (("autoregressive", False), ("verified without history", False), ("verified", True)):
                if scene.clock.left < 0:
                    continue
                found[way] = _decoded(engines[drafts], way.split()[0], at_once, new, temperature)
                over = found[way].rate / found["autoregressive"].rate
                row: dict[str, Any] = {
                    "temperature": temperature, "at once": at_once, "decoding": way,
                    "tokens/s": f"{found[way].rate:.0f}", "over autoregressive": f"{over:.2f}",
                    "tokens/forward": f"{found[way].tokens / max(1, found[way].forwards):.2f}",
                }  # fmt: skip
                rows.append(row)
                print(*row.values(), sep=" | ", flush=True)
    notes = (
        f"{scale.name}, with weights that repeat; rows of {_SPANS} kinds, {new} tokens each; whole jobs with four rows "
        "for each sequence at once, after a job to warm up."
    )
    return Report(title="History with templates", notes=notes, rows=rows)


def _engine(scene: Scene, model: Decoder, most: int, new: int, *, drafts: bool) -> Engine:
    length, page = 64 + 2 * new, EngineConfig().page_size
    config = EngineConfig(
        max_num_seqs=most, max_model_len=length, num_pages=2 * most * -(-length // page), history_drafts=drafts,
        weight_dtype=scene.weight_dtype, batch_invariant=False,
    )  # fmt: skip
    return Engine(model, Tokenizer.load(resolve("tiny")), config)


def _decoded(engine: Engine, strategy: str, at_once: int, new: int, temperature: float) -> Done:
    params = SamplingParams(strategy=strategy, temperature=temperature, max_tokens=new, ignore_eos=True)
    prompts = [(10 + row % _SPANS, 30 + row % _SPANS) for row in range(4 * at_once)]
    run_job(engine, prompts, params, at_once)
    return run_job(engine, prompts, params, at_once)

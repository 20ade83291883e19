"""Compare this engine with transformers ``generate`` on the same weights, prompts and threads: tokens and speed.

    python -m benchmarks.decode.transformers_compare [--model tiny] [--batches 1 32] [--threads 1]

transformers decodes left-padded static batches of equal size, greedy, in file order. This engine gets all prompts at
once and has as many slots as a batch. The tokens are compared first: every prompt must give the same ids. Timed passes
alternate; each figure is the best of ``--repeats``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import positive, table, write_result
from wedlm_core import LLM, EngineConfig, ModelConfig, SamplingParams, Strategy
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model

__all__ = ["main", "qwen3_twin"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One timed pass: seconds, and the generated ids of each prompt, end-of-sequence included."""

    seconds: float
    ids: list[list[int]]

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return sum(map(len, self.ids))


def qwen3_twin(folder: Path) -> Any:
    """``Qwen3ForCausalLM`` with the same weights as the checkpoint in ``folder``, float32, evaluation mode."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    ours = load_model(folder, device="cpu", dtype=torch.float32)
    config: ModelConfig = ours.config
    if not config.qk_norm:
        raise SystemExit("this comparison builds Qwen3ForCausalLM; the checkpoint has no q/k norm")
    twin = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.attention_bias,
        )
    ).eval()
    twin.load_state_dict(_hf_state(folder), strict=not config.tie_word_embeddings)
    return twin


def _hf_state(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state.update(load_file(file))
    return {name: tensor.float() for name, tensor in state.items()}


def theirs(twin: Any, prompts: list[list[int]], batch: int, max_tokens: int, eos: list[int], pad: int) -> Pass:
    """Run left-padded static batches through transformers ``generate``."""
    outputs: list[list[int]] = []
    start = time.perf_counter()
    for at in range(0, len(prompts), batch):
        part = prompts[at : at + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        with torch.inference_mode():
            out = twin.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False,
                eos_token_id=eos, pad_token_id=pad,
            )  # fmt: skip
        outputs += [_through_eos(row[width:].tolist(), eos) for row in out]
    return Pass(seconds=time.perf_counter() - start, ids=outputs)


def _through_eos(ids: list[int], eos: list[int]) -> list[int]:
    ends = [i for i, token in enumerate(ids) if token in eos]
    return ids[: ends[0] + 1] if ends else ids


def ours(llm: LLM, prompts: list[list[int]], max_tokens: int, strategy: Strategy) -> Pass:
    """Run all prompts through this engine."""
    start = time.perf_counter()
    out = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, strategy=strategy))
    return Pass(seconds=time.perf_counter() - start, ids=[list(g.token_ids) for g in out])


def main() -> None:
    """Run both, compare tokens, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--prompts", default="jobs/data/demo_prompts.parquet", help="Parquet with a prompt column")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 32])
    parser.add_argument("--max-tokens", type=positive, default=128)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--repeats", type=positive, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    import pyarrow.parquet as pq

    twin = qwen3_twin(resolve(args.model))
    rows, count = [], 0
    for batch in args.batches:
        llm = LLM(args.model, config=EngineConfig(max_num_seqs=batch, prefix_caching=False), device="cpu")
        prompts = [llm.tokenizer.encode(p) for p in pq.read_table(args.prompts)["prompt"].to_pylist()]
        count = len(prompts)
        best = race(llm, twin, prompts, batch, args.max_tokens, args.repeats)
        base = best["transformers generate"]
        rows += [
            (batch, name, one.tokens, one.tokens / one.seconds, base.seconds / one.seconds,
             f"{sum(a == b for a, b in zip(one.ids, base.ids, strict=True))} of {count}")
            for name, one in best.items()
        ]  # fmt: skip
    body = table(("batch", "engine", "tokens", "tokens/s", "speed ratio", "prompts with equal tokens"), rows)
    body += f"\n\n{count} prompts, greedy, float32, best of {args.repeats} alternating passes."
    command = f"python -m benchmarks.decode.transformers_compare --model {args.model} --repeats {args.repeats}"
    write_result("transformers", "Against transformers generate", command, body, threads=args.threads)


def race(llm: LLM, twin: Any, prompts: list[list[int]], batch: int, max_tokens: int, repeats: int) -> dict[str, Pass]:
    """The best pass of each engine, over alternating passes."""
    eos, pad = list(llm.engine.eos_token_ids), llm.model_config.pad_token_id or 0
    best: dict[str, Pass] = {}
    for _ in range(repeats):
        passes = {"transformers generate": theirs(twin, prompts, batch, max_tokens, eos, pad)}
        for strategy in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED):
            passes[f"ours, {strategy.value}"] = ours(llm, prompts, max_tokens, strategy)
        for name, one in passes.items():
            best[name] = min(best.get(name, one), one, key=lambda p: p.seconds)
    return best


if __name__ == "__main__":
    main()

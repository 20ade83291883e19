"""A checkpoint of real size with random weights: written shard by shard, loaded and decoded in int8.

    python -m benchmarks.decode.real_size [--shape 8b] [--weight-dtype int8] [--threads 2] [--folder DIR] [--new 8]

The files hold bfloat16, as published models do. Memory is sampled while the model is loaded and while it decodes: what
the process itself holds, and with it the pages of files that the system may take back at any time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.common import table, write_result
from benchmarks.decode.narrow_numbers import SHAPES as SMALL
from benchmarks.decode.random_model import SHAPES as LARGE
from wedlm_core import EngineConfig, ModelConfig, Request, SamplingParams, Strategy
from wedlm_core.config import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

__all__ = ["main", "write_checkpoint"]

SHAPES = {**SMALL, **LARGE}
_NUMBERS = 9_999_991  # are drawn, and repeated: a prime, so that no two rows of a matrix are alike


def write_checkpoint(config: ModelConfig, folder: Path) -> int:
    """Write random bfloat16 weights, one file a layer; the bytes written."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads * dim, config.num_key_value_heads * dim
    (folder / "config.json").write_text(json.dumps({**config.to_hf(), "dtype": "bfloat16"}), encoding="utf-8")
    total, index = 0, {}

    numbers = torch.empty(_NUMBERS).uniform_(-1, 1, generator=generator).bfloat16()

    def draw(*shape: int) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        size = shape[0] * shape[1]
        return numbers.repeat(-(-size // _NUMBERS))[:size].view(shape[0], shape[1]).mul(shape[1] ** -0.5)

    def shard(name: str, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal total
        save_file(tensors, folder / name)
        total += sum(one.nbytes for one in tensors.values())
        index.update(dict.fromkeys(tensors, name))

    outer = {"model.embed_tokens.weight": draw(config.vocab_size, hidden), "model.norm.weight": draw(hidden)}
    if not config.tie_word_embeddings:
        outer["lm_head.weight"] = draw(config.vocab_size, hidden)
    shard("outer.safetensors", outer)
    for number in range(config.num_hidden_layers):
        sizes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv_heads, hidden), "self_attn.v_proj": (kv_heads, hidden),
            "self_attn.o_proj": (hidden, heads), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        if config.qk_norm:
            sizes |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
        shard(f"layer-{number:03}.safetensors",
              {f"model.layers.{number}.{name}.weight": draw(*size) for name, size in sizes.items()})  # fmt: skip
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    return total


@dataclass
class Memory:
    """Peaks in bytes: of the process's own memory, and with pages of files."""

    own: int = 0
    with_files: int = 0

    def look(self) -> None:
        """Take a sample."""
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        own, files = (1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile"))
        self.own, self.with_files = max(self.own, own), max(self.with_files, own + files)


@contextmanager
def watched() -> Iterator[Memory]:
    """Memory of this process during the block."""
    memory, done = Memory(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            memory.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
        memory.look()


def main() -> None:
    """Write, load, decode, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=list(SHAPES))
    parser.add_argument("--weight-dtype", default="int8", choices=("int8", "auto"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=8)
    parser.add_argument("--folder", help="where the checkpoint is written, and removed after the run")
    parser.add_argument("--note", default="", help="a sentence on the state of the machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = SHAPES[args.shape]
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place) / args.shape
        begin = time.perf_counter()
        written = write_checkpoint(config, folder)
        print(f"wrote {written / 1e9:.1f} GB in {time.perf_counter() - begin:.0f} s", flush=True)
        rows = _run(folder, args, written)
    body = f"{args.note}\n\n" + table(("what", "value"), rows)
    command = f"python -m benchmarks.decode.real_size --shape {args.shape} --threads {args.threads}"
    write_result(f"real-size-{args.shape}", f"A checkpoint of the shape {args.shape} in {args.weight_dtype}", command,
                 body, threads=args.threads)  # fmt: skip


def _run(folder: Path, args: argparse.Namespace, written: int) -> list[tuple[object, ...]]:
    with watched() as memory:
        begin = time.perf_counter()
        model = load_model(folder, device="cpu", dtype=torch.float32, weight_dtype=args.weight_dtype, max_positions=512)
        loaded = time.perf_counter() - begin
        settings = EngineConfig(
            weight_dtype=args.weight_dtype, max_num_seqs=8, max_model_len=256, num_pages=16,
            step_cost=StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16),
        )  # fmt: skip
        engine = Engine(model, Tokenizer.load(resolve("tiny")), settings, keep_weights=False)
        del model
        built = time.perf_counter() - begin - loaded
    rows: list[tuple[object, ...]] = [
        ("bytes of the files", f"{written / 1e9:.2f} GB"), ("seconds to load", f"{loaded:.1f}"),
        ("seconds to pack and build the engine", f"{built:.1f}"),
        ("peak of the process's own memory while loading", f"{memory.own / 2**30:.2f} GiB"),
        ("the same with pages of files", f"{memory.with_files / 2**30:.2f} GiB"),
    ]  # fmt: skip
    for batch in (1, 8):
        with watched() as memory:
            params = SamplingParams(max_tokens=args.new, ignore_eos=True, strategy=Strategy.AUTOREGRESSIVE)
            for number in range(batch):
                prompt = tuple(10 + (7 * i + 13 * number) % 900 for i in range(16))
                engine.add(Request(request_id=f"{batch}.{number}", prompt_token_ids=prompt, params=params, seed=number))
            engine.step()
            times = []
            while engine.has_work():
                begin = time.perf_counter()
                engine.step()
                times.append(time.perf_counter() - begin)
        middle = sorted(times)[len(times) // 2]
        rows.append((f"decode step of {batch}", f"{middle:.3f} s, {batch / middle:.1f} tokens/s"))
    rows.append(("peak of the process's own memory while decoding", f"{memory.own / 2**30:.2f} GiB"))
    return rows


if __name__ == "__main__":
    main()

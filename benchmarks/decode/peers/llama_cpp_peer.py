"""llama.cpp, by its C interface: a GGUF file is written from the safetensors of the model first.

Needs the packages llama-cpp-python, gguf and safetensors. NUMBERS: ``float32`` or ``q8_0``. On CPUs with AMX its
products by matrix units are turned off: version 0.3.36, built by gcc 12, ends with a segmentation fault in them.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as api
import numpy as np
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_SEQUENCES, _TOKENS = 64, 128  # room for so many sequences of so many tokens


def write_gguf(folder: Path, path: Path) -> None:
    """The model in ``folder`` (Qwen3 layout) as a float32 GGUF without a vocabulary."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)
    writer.add_tokenizer_model("no_vocab")
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            if name.startswith("model.layers."):
                _, _, number, rest = name.split(".", 3)
                writer.add_tensor(f"blk.{number}.{_LAYER[rest]}", values.astype(np.float32))
            elif name in _NAMES:
                writer.add_tensor(_NAMES[name], values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_file(folder: Path, numbers: str) -> Path:
    """The GGUF file of these numbers, written once."""
    wide = folder / "float32.gguf"
    if not wide.exists():
        write_gguf(folder, wide)
    if numbers == "float32":
        return wide
    narrow = folder / f"{numbers}.gguf"
    if not narrow.exists():
        params = api.llama_model_quantize_default_params()
        params.ftype = api.LLAMA_FTYPE_MOSTLY_Q8_0
        if api.llama_model_quantize(str(wide).encode(), str(narrow).encode(), ctypes.byref(params)):
            raise SystemExit("llama_model_quantize failed")
    return narrow


def chain_of(sampling: dict[str, float], seed: int) -> Any:
    """A chain of samplers in the order of its own programs: penalties, filters, temperature, draw. None is greedy."""
    if not sampling["temperature"]:
        return None
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    if presence := sampling.get("presence_penalty"):
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_penalties(_TOKENS, 1.0, 0.0, presence))
    if top_k := sampling.get("top_k"):
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(int(top_k)))
    if top_p := sampling.get("top_p"):
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_p(top_p, 1))
    api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(sampling["temperature"]))
    api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(seed))
    return chain


class Engine:
    """A model and a context with room for all sequences."""

    def __init__(self, path: Path, threads: int) -> None:
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.use_extra_bufts = "amx_tile" not in Path("/proc/cpuinfo").read_text()
        self.model = api.llama_model_load_from_file(str(path).encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = _SEQUENCES * _TOKENS, _SEQUENCES
        params.n_batch, params.n_ubatch = 4096, 512
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = 0  # float32, as the other engines
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            params.type_k = params.type_v = 1
            self.context = api.llama_init_from_model(self.model, params)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(4096, 0, 1)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = wanted
        self.batch.n_tokens = len(tokens)
        if api.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")

    def _choice(self, place: int, sampler: Any) -> int:
        if sampler is not None:
            return int(api.llama_sampler_sample(sampler, self.context, place))
        row = np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, place), (self.vocab,))
        return int(row.argmax())

    def generate(self, prompts: list[list[int]], new: int, sampling: dict[str, float]) -> list[list[int]]:
        """Tokens of all prompts; each has a chain of samplers."""
        chains = [chain_of(sampling, s) for s in range(len(prompts))]
        try:
            return self._generate(prompts, new, chains)
        finally:
            for chain in filter(None, chains):
                api.llama_sampler_free(chain)

    def _generate(self, prompts: list[list[int]], new: int, chains: list[Any]) -> list[list[int]]:
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        out: list[list[int]] = [[] for _ in prompts]
        per_call = max(1, 4096 // max(map(len, prompts)))
        for first in range(0, len(prompts), per_call):
            tokens, places = [], []
            for s, prompt in enumerate(prompts[first : first + per_call], first):
                tokens += [(token, p, s, p == len(prompt) - 1) for p, token in enumerate(prompt)]
                places.append((s, len(tokens) - 1))
            self._decode(tokens)
            for s, place in places:
                out[s].append(self._choice(place, chains[s]))
        for _ in range(new - 1):
            self._decode([(own[-1], len(prompts[s]) + len(own) - 1, s, True) for s, own in enumerate(out)])
            for s, own in enumerate(out):
                own.append(self._choice(s, chains[s]))
        return out


def main() -> None:
    """Answer lines until the input ends."""
    folder, threads, numbers = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    path = model_file(folder, numbers)
    begin = time.perf_counter()
    engine = Engine(path, threads)
    seconds = time.perf_counter() - begin
    print(json.dumps({"engine": "llama.cpp", "version": api.__version__, "load": seconds}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        begin = time.perf_counter()
        ids = engine.generate(task["prompts"], task["new"], task["sampling"])
        spent = {"seconds": time.perf_counter() - begin}
        print(json.dumps({**spent, "ids": ids}), flush=True)


if __name__ == "__main__":
    main()

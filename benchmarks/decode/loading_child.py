"""One load in a process of its own, measured; see :mod:`benchmarks.decode.loading`. Runs by its path.

Prints ``{"seconds", "stays", "peak"}``, megabytes of anonymous memory that the load has added. ``convert`` writes a
GGUF file instead. Under another Python that has no torch, only ``convert`` and ``llama`` work.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["OURS"]

OURS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"weight_dtype": "int8"},
    "int4": {"weight_dtype": "int4"},
}
"""Arguments of ``LLM`` by the name of the numbers."""
_TICK = 0.002  # seconds between two looks at the memory
_READ_BYTES = 4 << 20
_TOUCHED = 3 << 30  # more than a load takes


def main() -> None:
    """Do what the command line says."""
    what, name, place, *rest = sys.argv[1:]
    if what == "convert":
        _convert(Path(place), Path(rest[0]), name)
        return
    prepare = {"ours": _ours, "floor": _floor, "transformers": _transformers, "llama": _llama}[what]
    load = prepare(name, place)
    _touch_memory()
    before = peak = _anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_TICK):
            peak = max(peak, _anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begin = time.perf_counter()
    kept = load()
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    stays = _anonymous()
    print(json.dumps({"seconds": seconds, "stays": (stays - before) / 1e6, "peak": (max(peak, stays) - before) / 1e6}))
    del kept


def _touch_memory() -> None:
    """Take memory and give it back: what a virtual machine gave to its host costs several times as much to take."""
    block = mmap.mmap(-1, _TOUCHED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, _TOUCHED, mmap.PAGESIZE):
        block[place] = 1
    block.close()


def _anonymous() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found.group(1)) << 10


def _ours(name: str, folder: str) -> Callable[[], object]:
    sys.path[0] = os.getcwd()
    from wedlm_core import LLM

    LLM("tiny", **OURS[name])  # imports everything, and compiles kernels

    return lambda: LLM(folder, max_num_seqs=8, max_model_len=512, **OURS[name])


def _floor(name: str, folder: str) -> Callable[[], object]:
    """Read the files plainly, then round and pack every matrix once; matrices are made before the clock runs."""
    sys.path[0] = os.getcwd()
    import torch

    from wedlm_core.kernels.cpu.panels import numbers_here, numeric_kind
    from wedlm_core.model.checkpoint import load_config
    from wedlm_core.model.expected_tensors import expected_tensors
    from wedlm_core.model.int4 import Int4Linear
    from wedlm_core.model.int8 import Int8Linear
    from wedlm_core.model.panels import pack

    cores = os.cpu_count() or 1
    kinds: dict[str, type[Int8Linear | Int4Linear]] = {"int8": Int8Linear, "int4": Int4Linear}
    dtype = torch.bfloat16 if name in ("bfloat16", *kinds) else torch.float32
    shapes = [(e.shape[0], e.shape[1]) for e in expected_tensors(load_config(folder)).values() if len(e.shape) == 2]
    sources = {shape: torch.randn(shape).to(dtype) for shape in set(shapes)}
    wanted = ("int8", "int16") if name == "int8" else (name,)
    numbers = next((one for one in numbers_here() if numeric_kind(one) in wanted), None)  # an engine's panels here
    if name in kinds:
        kinds[name](1, 64).put(0, torch.zeros(1, 64))  # compiles
    if numbers is not None:
        pack(torch.zeros(1, 64, dtype=torch.int8 if name == "int8" else dtype), numbers)

    def read(path: Path) -> None:
        buffer = bytearray(_READ_BYTES)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def rounded(shape: tuple[int, int]) -> Int8Linear | Int4Linear:
        source, layer = sources[shape], kinds[name](*shape)
        step = max(1, _READ_BYTES // source[0].nbytes)
        for start in range(0, len(source), step):
            layer.put(start, source[start : start + step])
        return layer

    def packed(source: torch.Tensor) -> object:
        """By one thread for each core; where a CPU has no product of these numbers, an engine keeps them plain."""
        return source.clone() if numbers is None else pack(source, numbers)

    def run() -> object:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(read, sorted(Path(folder).glob("*.safetensors"))))
            if name not in kinds:
                return [packed(sources[shape]) for shape in shapes]
            layers = list(pool.map(rounded, shapes))
        if numbers is None:
            return layers
        kept = []
        while layers:  # each is let go of when it is packed
            kept.append(packed(layers.pop().weight))
        return kept

    return run


def _transformers(name: str, folder: str) -> Callable[[], object]:
    import tempfile

    import torch
    from transformers import AutoModelForCausalLM

    kept = tempfile.TemporaryDirectory()  # the same files under the name of an architecture that it knows
    for path in Path(folder).resolve().iterdir():
        if path.name != "config.json":
            (Path(kept.name) / path.name).symlink_to(path)
    raw = json.loads((Path(folder) / "config.json").read_text())
    raw |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (Path(kept.name) / "config.json").write_text(json.dumps(raw))

    def load() -> object:
        model = AutoModelForCausalLM.from_pretrained(kept.name, dtype=getattr(torch, name))
        for parameter in model.parameters():  # what is only mapped is not loaded
            parameter.data = parameter.data.clone() if parameter.data.storage_offset() else parameter.data
        return kept, model

    return load


def _llama(_: str, file: str) -> Callable[[], object]:
    from llama_cpp import llama_cpp as api

    api.llama_backend_init()

    def load() -> object:
        model = api.llama_model_load_from_file(file.encode(), api.llama_model_default_params())
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = 8 * 512, 8
        params.n_threads = params.n_threads_batch = os.cpu_count()
        context = api.llama_init_from_model(model, params)
        if not context:
            raise SystemExit(f"llama.cpp does not load {file}")
        return model, context

    return load


def _convert(folder: Path, file: Path, kind: str) -> None:
    """Write a checkpoint of Qwen3's layout as a GGUF file without a vocabulary."""
    import gguf

    raw = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_key_length(raw["head_dim"])
    writer.add_value_length(raw["head_dim"])
    writer.add_rope_freq_base(raw["rope_theta"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_vocab_size(raw["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    target = gguf.GGMLQuantizationType[kind]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, raw["num_hidden_layers"])
    for name, wide in _tensors(folder):
        own = names.get_name(name, try_suffixes=(".weight",))
        narrow = target if wide.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(own, gguf.quants.quantize(wide, narrow), raw_dtype=narrow)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and float32 arrays of bfloat16 or float32 safetensors files, read without torch."""
    import numpy as np

    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, dtype=np.uint8, mode="r")
        size = int(data[:8].view(np.uint64)[0])
        for name, entry in json.loads(bytes(data[8 : 8 + size])).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + at for at in entry["data_offsets"])
            part = np.array(data[begin:end])
            wide = (part.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else (
                part.view(np.float32)
            )  # fmt: skip
            yield name, wide.reshape(entry["shape"])


if __name__ == "__main__":
    main()

"""OpenVINO GenAI. The model is converted to its format first, with wide weights.

Needs the packages openvino-genai and optimum-intel[openvino]; 2.2.0 was tried, with transformers 5.5.4. A torchvision
of another build than torch keeps it from starting, and is not needed.

NUMBERS: ``float32`` computes in float32, with keys and values in 16 bits; ``default`` leaves the choice to it (bfloat16
on CPUs that have it).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai


def converted(folder: Path) -> Path:
    """The folder of the converted model, made once."""
    target = folder / "openvino"
    if target.exists():
        return target
    import torch
    from optimum.intel import OVModelForCausalLM
    from transformers import Qwen3Config, Qwen3ForCausalLM

    raw = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config = Qwen3Config(**{key: value for key, value in raw.items() if key not in ("model_type", "architectures")})
        Qwen3ForCausalLM.from_pretrained(folder, config=config, torch_dtype=torch.float32).save_pretrained(place)
        model = OVModelForCausalLM.from_pretrained(place, export=True, compile=False, load_in_8bit=False)
        model.save_pretrained(Path(place) / "out")
        shutil.move(Path(place) / "out", target)
    return target


def sampling(given: dict[str, float]) -> dict[str, object]:
    """The fields of a GenerationConfig for a task's settings."""
    return {"do_sample": True, **given} if given["temperature"] else {"do_sample": False}


def main() -> None:
    """Answer lines until the input ends."""
    folder, threads, numbers = converted(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    options: dict[str, object] = {"INFERENCE_NUM_THREADS": threads}
    if numbers != "default":
        options["INFERENCE_PRECISION_HINT"] = "f32"
    begin = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(folder, "CPU", **options)  # without a tokenizer, it takes ids
    seconds = time.perf_counter() - begin
    version = openvino_genai.__version__
    print(json.dumps({"engine": "OpenVINO GenAI", "version": version, "load": seconds}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        ids, new = np.array(task["prompts"], dtype=np.int64), task["new"]
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        wanted = openvino_genai.GenerationConfig(
            max_new_tokens=new, min_new_tokens=new, ignore_eos=True, **sampling(task["sampling"])
        )
        begin = time.perf_counter()
        out = pipeline.generate(inputs, wanted)
        spent = {"seconds": time.perf_counter() - begin}
        print(json.dumps({**spent, "ids": [list(map(int, one)) for one in out.tokens]}), flush=True)


if __name__ == "__main__":
    main()

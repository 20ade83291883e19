"""transformers ``generate``. Needs the packages torch and transformers. NUMBERS: a dtype of torch."""

from __future__ import annotations

import json
import sys
import time

import torch
import transformers


def sampling(given: dict[str, float]) -> dict[str, object]:
    """The arguments of ``generate`` for a task's settings. transformers has no presence penalty."""
    if not given["temperature"]:
        return {"do_sample": False}
    return {"do_sample": True, "top_k": 0, **{k: v for k, v in given.items() if k != "presence_penalty"}}


def main() -> None:
    """Answer lines until the input ends."""
    folder, threads, numbers = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    config = transformers.Qwen3Config.from_pretrained(folder)
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder, config=config, dtype=getattr(torch, numbers)).eval()
    seconds = time.perf_counter() - begin
    print(json.dumps({"engine": "transformers", "version": transformers.__version__, "load": seconds}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        ids, new, options = torch.tensor(task["prompts"]), task["new"], sampling(task["sampling"])
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), min_new_tokens=new,
                max_new_tokens=new, eos_token_id=None, pad_token_id=0, **options,
            )  # fmt: skip
        spent = {"seconds": time.perf_counter() - begin}
        print(json.dumps({**spent, "ids": out[:, ids.shape[1] :].tolist()}), flush=True)


if __name__ == "__main__":
    main()

"""transformers, in bfloat16. Needs the packages torch and transformers.

Ways: ``continuous batching`` is ``generate_batch``, which starts a new row when one ends; ``static cache, compiled`` is
``generate`` with a cache of fixed size, one batch after the other; on a GPU transformers compiles its forward.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

Ids = list[list[int]]


def continuous(model: Any, at_once: int) -> Callable[[Ids, int], int]:
    """A function that generates ``new`` tokens for each prompt, and returns their total number."""
    from transformers import ContinuousBatchingConfig

    batching = ContinuousBatchingConfig(max_requests_per_batch=at_once, allow_block_sharing=False)

    def generated(prompts: Ids, new: int) -> int:
        wanted = GenerationConfig(max_new_tokens=new, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
        found = model.generate_batch(prompts, generation_config=wanted, continuous_batching_config=batching)
        if errors := [one.error for one in found.values() if one.error]:
            raise RuntimeError(errors[0])
        return sum(len(one.generated_tokens) for one in found.values())

    return generated


def static(model: Any, at_once: int) -> Callable[[Ids, int], int]:
    """The same with a static cache."""

    def generated(prompts: Ids, new: int) -> int:
        tokens = 0
        for start in range(0, len(prompts), at_once):
            ids = torch.tensor(prompts[start : start + at_once], device=model.device)
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new, do_sample=True,
                top_k=0, eos_token_id=None, pad_token_id=0, cache_implementation="static",
            )  # fmt: skip
            tokens += out[:, ids.shape[1] :].numel()
        return tokens

    return generated


def main() -> None:
    """Warm up with one batch of the task, decode the task, and print the answer."""
    folder, task = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(0)
    with torch.device(task["device"]):
        if task["random"]:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.eval()
    draw = random.Random(0)
    prompts = [[draw.randrange(task["vocab"]) for _ in range(task["prompt"])] for _ in range(task["rows"])]
    ways = {"continuous batching": continuous, "static cache, compiled": static}
    generated = ways[task["way"]](model, task["at_once"])
    generated(prompts[: task["at_once"]], task["new"])
    begin = time.perf_counter()
    tokens = generated(prompts, task["new"])
    seconds = time.perf_counter() - begin
    print(json.dumps({"version": transformers.__version__, "seconds": seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()

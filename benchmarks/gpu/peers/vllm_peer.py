"""vLLM, by its offline API. Needs the package vllm. vLLM itself runs ``max_num_seqs`` sequences at once.

Ways: ``bfloat16``; and ``fp8``, which rounds weights when it loads them, and has keys and values in 8 bits. Random
weights are vLLM's ``load_format="dummy"``.
"""

from __future__ import annotations

import json
import random
import sys
import time

import vllm


def main() -> None:
    """Warm up with a few tokens of ``at_once`` rows, decode the task, and print the answer."""
    folder, task = sys.argv[1], json.loads(sys.argv[2])
    narrow = task["way"] == "fp8"
    llm = vllm.LLM(
        model=folder, skip_tokenizer_init=True, load_format="dummy" if task["random"] else "auto", dtype="bfloat16",
        quantization="fp8" if narrow else None, kv_cache_dtype="fp8" if narrow else "auto",
        max_num_seqs=task["at_once"], max_model_len=task["prompt"] + task["new"] + 1, enable_prefix_caching=False,
    )  # fmt: skip
    draw = random.Random(0)

    def generated(rows: int, new: int) -> int:
        prompts = [
            {"prompt_token_ids": [draw.randrange(task["vocab"]) for _ in range(task["prompt"])]} for _ in range(rows)
        ]
        params = vllm.SamplingParams(max_tokens=new, ignore_eos=True, temperature=1.0, detokenize=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in outputs)

    generated(task["at_once"], min(8, task["new"]))
    begin = time.perf_counter()
    tokens = generated(task["rows"], task["new"])
    print(json.dumps({"version": vllm.__version__, "seconds": time.perf_counter() - begin, "tokens": tokens}))


if __name__ == "__main__":
    main()

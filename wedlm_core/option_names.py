"""Unknown names of options: an error that names the nearest known one, or the counterpart of a name of vLLM's.

A leaf: knows names, not their meaning.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from wedlm_core.errors import explain

_C = TypeVar("_C", bound=type)
_F = TypeVar("_F", bound=Callable[..., Any])

_PLAIN_TEXT = "Text is always without special tokens; token_ids has all of them"

SAMPLING_NAMES: Mapping[str, str] = {
    "best_of": "Ask for n samples, and keep the best by stats.mean_logprob",
    "prompt_logprobs": "Use logprobs for generated tokens; LLM.score, or a job with a task of Score, for given ones",
    "allowed_token_ids": "Keep the others out with logit_bias or bad_words",
    "skip_special_tokens": _PLAIN_TEXT,
    "spaces_between_special_tokens": _PLAIN_TEXT,
    "detokenize": "There is always text, with token_ids",
    "include_stop_str_in_output": "token_ids ends with the token that completed the stop string",
    "truncate_prompt_tokens": "Cut the prompt before, or set on_long_prompt of a pipeline run",
    "logits_processors": "Use logit_bias, bad_words, min_tokens or the penalties",
    "output_kind": "LLM.generate returns finished texts, LLM.stream returns pieces",
    "use_beam_search": "There is no beam search: use n samples with a temperature",
    "max_new_tokens": "Use max_tokens",
    "do_sample": "Use temperature: 0 is greedy",
    "num_return_sequences": "Use n",
}
"""Sampling parameters of vLLM and transformers that we do not have, and their counterparts."""

ENGINE_NAMES: Mapping[str, str] = {
    "tensor_parallel_size": "An engine has one device; pipeline.run(..., actors=N) takes N of them",
    "pipeline_parallel_size": "An engine has one device; pipeline.run(..., actors=N) takes N of them",
    "data_parallel_size": "An engine has one device; pipeline.run(..., actors=N) takes N of them",
    "max_num_batched_tokens": "Use max_batch_rows, the token rows of one forward",
    "enable_prefix_caching": "Use prefix_caching",
    "enable_chunked_prefill": "Prefill is always chunked; prefill_chunk bounds the chunks",
    "block_size": "Use page_size",
    "num_gpu_blocks_override": "Use num_pages",
    "kv_cache_memory_bytes": "Use kv_cache_bytes",
    "quantization": 'Use weight_dtype="int8", "int4" or "fp8_e4m3"',
    "enforce_eager": "Use cuda_graphs=False",
    "tokenizer": "The tokenizer is the one in the model's folder",
    "tokenizer_mode": "The tokenizer is the one in the model's folder",
    "trust_remote_code": "No code of a model is run: Qwen2.5 and Qwen3 layouts are built in",
    "max_logprobs": "SamplingParams(logprobs=k) takes up to 100",
    "swap_space": "Sequences that lose their pages are computed again",
    "cpu_offload_gb": "Weights and pages stay on the device: use weight_dtype or kv_cache_dtype for smaller ones",
    "disable_log_stats": "An engine logs no statistics: each Generation has its own",
    "speculative_config": 'strategy="verified" drafts and verifies with the model itself',
    "download_dir": "Set HF_HOME, or load from a local folder",
}
"""Arguments of vLLM's ``LLM`` that ours does not have, and their counterparts."""

CALL_NAMES: Mapping[str, str] = {
    "lora_request": "Give adapter, the folder of a LoRA adapter, which is merged into the weights",
    "prompt_token_ids": 'Pass the ids as prompts, or {"prompt_token_ids": [...]}',
    "priority": "Requests are served in order of arrival",
    "chat_template": "Put the template into the model's folder, as chat_template.jinja",
    "chat_template_content_format": "Content is text or a list of text parts",
    "continue_final_message": "Render the prompt yourself, and use generate",
    "mm_processor_kwargs": "The model reads text only",
}
"""Arguments of vLLM's ``generate`` and ``chat`` that ours do not have, and their counterparts."""


def unknown_name(name: str, value: object, known: Iterable[str], hints: Mapping[str, str], what: str) -> str:
    """The message for an argument that does not exist: its counterpart, or the nearest known name."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    remedy = hints.get(name) or (f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(listed)}.")
    return explain(name, value, f"no such argument of {what}", remedy if remedy.endswith(("?", ".")) else f"{remedy}.")


def known_fields_only(
    error: type[Exception], hints: Mapping[str, str], describe: Callable[[str], str] | None = None
) -> Callable[[_C], _C]:
    """Class decorator, above ``dataclass``: an unknown field is this error instead of a TypeError.

    Args:
        error: to raise.
        hints: remedies for some names.
        describe: the message for a name, in place of :func:`unknown_name`.
    """

    def decorate(cls: _C) -> _C:
        init = cls.__init__  # type: ignore[misc]
        cls.__init__ = known_names_only(error, hints, what=cls.__name__, describe=describe)(init)  # type: ignore[misc]
        return cls

    return decorate


def known_names_only(
    error: type[Exception], hints: Mapping[str, str], what: str = "", describe: Callable[[str], str] | None = None
) -> Callable[[_F], _F]:
    """Decorator of a function: an unknown keyword is this error, which names the nearest known one."""

    def decorate(function: _F) -> _F:
        names = inspect.signature(function).parameters
        known = [name for name in names if name != "self" and not name.startswith("_")]

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not options.keys() <= names.keys():
                name = next(name for name in options if name not in names)
                if describe is not None:
                    raise error(describe(name))
                raise error(unknown_name(name, options[name], known, hints, what or function.__qualname__))
            return function(*args, **options)

        return call  # type: ignore[return-value]

    return decorate

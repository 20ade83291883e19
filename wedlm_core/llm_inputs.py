"""The arguments of ``LLM``: prompts of every form, conversations, parameters, devices and dtypes; all checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from wedlm_core.devices import numbered
from wedlm_core.errors import ConfigError, RequestError, explain
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

PromptDict = Mapping[str, Any]
"""``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, as vLLM has it."""

Prompt = str | Sequence[int] | PromptDict

_FORMS = 'a prompt is a string, a list of integer token ids, or {"prompt": ...} or {"prompt_token_ids": ...}'
_DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "float": torch.float32, "half": torch.float16,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """A prompt's token ids, and its text where it was given."""

    ids: tuple[int, ...]
    text: str | None = None


def tokenised(prompt: Any, tokenizer: Tokenizer, most: int | None = None, *, complete: bool = True) -> Tokenised:
    """Token ids of a prompt of any form. They are copied: the caller may change its list afterwards.

    Args:
        prompt: the prompt.
        tokenizer: of the model.
        most: tokens of a text at most; one that is certain to have more is not encoded. None: no limit.
        complete: a text is a whole prompt, so the tokens around prompts are added to it.

    Raises:
        RequestError: it is no prompt, or too long.
    """
    if isinstance(prompt, Tokenised):
        return prompt
    text = prompt
    if isinstance(prompt, Mapping):
        if not prompt or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
            raise RequestError(explain("prompt", dict(prompt), _FORMS, "Leave other keys out."))
        text = prompt.get("prompt")
        if text is not None and not isinstance(text, str):
            raise RequestError(explain("prompt", text, "the text of a prompt is a string", "Pass text."))
        if "prompt_token_ids" in prompt:
            return Tokenised(ids=_token_ids(prompt["prompt_token_ids"]), text=text)
    if isinstance(text, str):
        if most is not None and len(text) > most and (least := tokenizer.least_tokens(text, most)) > most:
            rule = f"at most max_model_len = {most} tokens together"
            raise RequestError(explain("prompt + max_tokens", f"at least {least}", rule, "Shorten the prompt."))
        encode = tokenizer.encode_prompt if complete else tokenizer.encode
        return Tokenised(ids=tuple(encode(text)), text=text)
    return Tokenised(ids=_token_ids(text))


def _token_ids(prompt: Any) -> tuple[int, ...]:
    fits = isinstance(prompt, Sequence) and not isinstance(prompt, (str, bytes, bytearray))
    if not fits or not all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
        raise RequestError(explain("prompt", prompt, _FORMS, "Pass one of these."))
    return tuple(prompt)


def list_of_prompts(prompts: Any) -> list[Prompt]:
    """One prompt, or several, as a list.

    Raises:
        RequestError: it is neither.
    """
    if isinstance(prompts, str) or (isinstance(prompts, Mapping) and {"prompt", "prompt_token_ids"} & prompts.keys()):
        return [prompts]
    # These are iterable too, but their items are not prompts.
    if not isinstance(prompts, Iterable) or isinstance(prompts, (Mapping, Set, bytes, bytearray)):
        raise RequestError(explain("prompts", prompts, f"{_FORMS}, or a list of these", "Pass one of these."))
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(isinstance(p, int) for p in listed) else listed


def conversations_of(conversations: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation, or several, as a list.

    Raises:
        RequestError: it is neither.
    """
    if not isinstance(conversations, Sequence) or isinstance(conversations, (str, bytes)):
        rule = "a list of messages, or a list of such lists"
        raise RequestError(explain("conversations", conversations, rule, "Pass one of the two."))
    if conversations and isinstance(conversations[0], Mapping):
        return [conversations]
    return list(conversations)


def either(name: str, value: Any, other_name: str, other: Any) -> Any:
    """The one of two arguments that is given: one is the other under vLLM's name.

    Raises:
        RequestError: both are.
    """
    if value is not None and other is not None:
        raise RequestError(explain(other_name, other, f"{name} is given too, and is the same argument", "Drop one."))
    return value if other is None else other


def params_of(params: Any, count: int) -> list[SamplingParams]:
    """Parameters of each of ``count`` prompts.

    Raises:
        RequestError: neither one for all nor one for each.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        rule = "SamplingParams, or a list of them"
        raise RequestError(explain("params", params, rule, "Pass SamplingParams(max_tokens=...)."))
    if len(params) != count:
        rule = f"one for all, or one for each of the {count} prompts"
        raise RequestError(explain("params", f"{len(params)} of them", rule, "Pass a list of the same length."))
    return list(params)


def device_of(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name == "auto":
        return numbered(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = torch.device(str(name))
        known = device.type in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise ConfigError(explain("device", name, 'one of "auto", "cpu", "cuda", "cuda:N"', 'Use "auto".'))
    return numbered(device)


def dtype_of(name: object, device: torch.device) -> torch.dtype:
    """The dtype of a name (or the dtype itself) on a device.

    Raises:
        ConfigError: there is none of this name.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = _DTYPES.get(name) if isinstance(name, str) else name if isinstance(name, torch.dtype) else None
    if found not in _DTYPES.values():
        known = 'one of "auto", "float32", "bfloat16", "float16"'
        raise ConfigError(explain("dtype", name, known, 'Use "auto".'))
    return found  # type: ignore[return-value]

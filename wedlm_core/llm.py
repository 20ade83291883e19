"""``LLM``: the public interface to one model: generate, chat and stream."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal

import torch

from wedlm_core.config import EngineConfig
from wedlm_core.devices import numbered
from wedlm_core.engine import Engine
from wedlm_core.errors import ConfigError, RequestError, explain
from wedlm_core.kv.pool import kv_dtype_of
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.seeds import row_seed, sample_seed
from wedlm_core.tokenizer import TextStream, Tokenizer
from wedlm_core.types import Delta, Generation, Request, SamplingParams

__all__ = ["LLM", "Prompt"]

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int]


class LLM:
    """Load a model and generate with it.

    Args:
        model: ``"tiny"`` (shipped), a local folder, an fsspec URL (``s3://...``), or a hub id.
        config: engine configuration.
        device: ``"auto"`` (CUDA if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` ...
        dtype: ``"auto"`` (float32 on CPU, bfloat16 on CUDA), ``"float32"``, ``"bfloat16"``, ``"float16"``.
        revision: branch, tag or commit of a hub id.
        storage_options: passed to fsspec for a URL.

    Raises:
        WeightsError: the model cannot be found or its weights do not fit its configuration.
        ConfigError: an unknown device or dtype, or a configuration that contradicts itself.
    """

    def __init__(
        self,
        model: str,
        *,
        config: EngineConfig | None = None,
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        revision: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(explain("config", config, "None or an EngineConfig", "Pass EngineConfig(...)."))
        place = _device(device)
        kv_dtype_of(config.kv_cache_dtype if config else "auto", torch.float32, place)  # refused before loading
        folder = resolve(model, revision=revision, storage_options=storage_options)
        self.name = model
        self.tokenizer = Tokenizer.load(folder)
        decoder = load_model(folder, device=place, dtype=_dtype(dtype, place))
        quantise(decoder, config.weight_dtype if config else "auto")
        self.model_config = decoder.config
        self.engine = Engine(decoder, self.tokenizer, config)
        self._requests = 0
        self._finished: dict[str, Generation] = {}

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Generation]:
        """Generate for every prompt, in one continuous batch.

        Args:
            prompts: texts (encoded without a template) or lists of token ids; or one of these.
            params: one for all, or one per prompt.

        Returns:
            Prompt-major: the ``n`` samples of the first prompt, then those of the second, and so on.

        Raises:
            RequestError, CapacityError: a prompt or its parameters cannot be served; nothing was generated.
        """
        listed = _as_list(prompts)
        chosen = _per_prompt(params, len(listed))
        requests = [r for prompt, p in zip(listed, chosen, strict=True) for r in self._requests_of(prompt, p)]
        added: list[str] = []
        try:
            for request in requests:
                self.engine.add(request)
                added.append(request.request_id)
            unfinished = set(added)
            while unfinished:
                unfinished -= self._step()
        except BaseException:
            for request_id in added:
                self._forget(request_id)
            raise
        return [self._finished.pop(r.request_id) for r in requests]

    def _step(self) -> set[str]:
        """Run one engine step; return the ids of finished requests. ``_finished`` keeps their results."""
        done = {g.request_id: g for g in self.engine.step()}
        self._finished.update(done)
        return set(done)

    def _forget(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._finished.pop(request_id, None)

    def chat(
        self,
        conversations: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Generate the assistant's next turn of each conversation, through the tokenizer's chat template.

        Args:
            conversations: one list of ``{"role", "content"}`` messages, or several.
            params: as in :meth:`generate`.

        Raises:
            ConfigError: the tokenizer has no chat template.
            RequestError: the template refuses the messages.
        """
        listed: Any = conversations
        if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)):
            rule = "a list of messages, or a list of such lists"
            raise RequestError(explain("conversations", listed, rule, "Pass one of the two."))
        if listed and isinstance(listed[0], Mapping):
            listed = [listed]
        return self.generate([self.tokenizer.apply_chat_template(messages) for messages in listed], params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Generate for one prompt and yield the text in pieces of whole characters.

        The last :class:`Delta` carries the Generation; the joined pieces equal its ``text``. Text that may be the
        beginning of a stop string is held back. Closing the iterator early aborts the request.
        """
        (params,) = _per_prompt(params, 1)
        if params.n != 1:
            raise RequestError(explain("n", params.n, "stream gives one sample", "Call it once per sample."))
        (request,) = self._requests_of(prompt, params)
        self.engine.add(request)
        text = TextStream(self.tokenizer)
        hold = max((len(stop) for stop in params.stop), default=1) - 1
        shown, whole, tokens = 0, "", 0
        try:
            while True:
                if request.request_id not in self._finished:
                    self._step()
                final = self._finished.get(request.request_id)
                ids = list(final.token_ids) if final else self.engine.committed(request.request_id)
                fresh, tokens = tuple(ids[tokens:]), len(ids)
                whole = final.text if final else whole + text.push(fresh)
                end = len(whole) if final else max(shown, len(whole) - hold)
                if fresh or final:
                    yield Delta(text=whole[shown:end], token_ids=fresh, generation=final)
                shown = end
                if final:
                    return
        finally:
            self._forget(request.request_id)

    def _requests_of(self, prompt: Prompt, params: SamplingParams) -> list[Request]:
        """The n requests of a prompt. The ids are copied: the caller may change its list afterwards."""
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else _token_ids(prompt)
        self._requests += 1
        seed = params.seed if params.seed is not None else row_seed(self.engine.config.seed, str(self._requests))
        return [
            Request(
                request_id=f"{self._requests}.{i}",
                prompt_token_ids=ids,
                params=params,
                seed=sample_seed(seed, i),
                sample_index=i,
            )
            for i in range(params.n)
        ]


def _token_ids(prompt: Any) -> tuple[int, ...]:
    fits = isinstance(prompt, Sequence) and not isinstance(prompt, (str, bytes, bytearray))
    if not fits or not all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
        raise RequestError(
            explain("prompt", prompt, "a prompt is a string or a list of integer token ids", "Pass one of the two.")
        )
    return tuple(prompt)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    # These are iterable too, but their items are not prompts.
    if not isinstance(prompts, Iterable) or isinstance(prompts, (Mapping, Set, bytes, bytearray)):
        rule = "a prompt (a string or a list of token ids), or a list of prompts"
        raise RequestError(explain("prompts", prompts, rule, "Pass one of the two."))
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(isinstance(p, int) for p in listed) else listed


def _per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        rule = "SamplingParams, or a list of them"
        raise RequestError(explain("params", params, rule, "Pass SamplingParams(max_tokens=...)."))
    if len(params) != count:
        raise RequestError(
            explain(
                "params",
                f"{len(params)} of them",
                f"one for all, or one for each of the {count} prompts",
                "Pass a list of the same length.",
            )
        )
    return list(params)


def _device(name: str) -> torch.device:
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


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not isinstance(name, str) or name not in known:
        raise ConfigError(explain("dtype", name, f'one of {sorted(known)} or "auto"', 'Use "auto".'))
    return known[name]

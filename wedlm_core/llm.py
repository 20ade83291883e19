"""``LLM``: the public interface to one model: generate, chat and stream."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Unpack

import torch

from wedlm_core.config import EngineConfig, EngineFields
from wedlm_core.engine import Engine
from wedlm_core.engine.compute_dtype import check_weights_device, takes_panels
from wedlm_core.errors import ConfigError, RequestError, explain
from wedlm_core.kv.pool import kv_dtype_of
from wedlm_core.llm_inputs import (
    Prompt,
    Tokenised,
    conversations_of,
    device_of,
    dtype_of,
    either,
    list_of_prompts,
    params_of,
    tokenised,
)
from wedlm_core.llm_scoring import scorables_of, score_of
from wedlm_core.model.adapter import resolve_adapter, with_adapter
from wedlm_core.model.checkpoint import load_config, read_checkpoint
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.generation_defaults import load_generation_defaults
from wedlm_core.model.int4 import Int4Linear
from wedlm_core.model.smoothing_files import smoothing_of
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.option_names import CALL_NAMES, ENGINE_NAMES, known_names_only, unknown_name
from wedlm_core.progress_bar import progress_bar
from wedlm_core.redaction import redact_forms
from wedlm_core.seeds import row_seed, sample_seed
from wedlm_core.tokenizer import TextStream, Tokenizer
from wedlm_core.types import Delta, Generation, Request, SamplingParams, ScoreOutput

__all__ = ["LLM", "Prompt"]

logger = logging.getLogger(__name__)

_ENGINE_FIELDS = tuple(f.name for f in fields(EngineConfig))
_ARGUMENTS = ("model", "adapter", "config", "device", "dtype", "revision", "storage_options", "generation_config",
              *_ENGINE_FIELDS)  # fmt: skip


class LLM:
    """Load a model and generate with it.

    Args:
        model: ``"tiny"`` (shipped), a local folder, an fsspec URL (``s3://...``), or a hub id.
        adapter: a LoRA adapter in peft's format, in any of these places, which is added to the weights.
        config: engine configuration.
        device: ``"auto"`` (CUDA if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` ...
        dtype: ``"auto"`` (float32 on CPU, bfloat16 on CUDA), ``"float32"``, ``"bfloat16"``, ``"float16"``.
        revision: branch, tag or commit of a hub id.
        storage_options: passed to fsspec for a URL.
        generation_config: "auto" applies ``repetition_penalty`` and ``suppress_tokens`` of the model's
            ``generation_config.json``, as transformers does, to calls that set no value of their own; "off" does not.
        **engine: fields of :class:`EngineConfig`, in place of those of ``config``: ``max_model_len=4096``, ``seed=1``,
            ``gpu_memory_utilization=0.8`` ...

    Raises:
        WeightsError: the model cannot be found or its weights do not fit its configuration.
        ConfigError: an unknown argument, device or dtype, or a configuration that contradicts itself.
    """

    def __init__(
        self,
        model: str,
        *,
        adapter: str | None = None,
        config: EngineConfig | None = None,
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float16"] | torch.dtype = "auto",
        revision: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        generation_config: Literal["auto", "off"] = "auto",
        **engine: Unpack[EngineFields],
    ) -> None:
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(explain("config", config, "None or an EngineConfig", "Pass EngineConfig(...)."))
        for name, value in engine.items():
            if name not in _ENGINE_FIELDS:
                raise ConfigError(unknown_name(name, value, _ARGUMENTS, ENGINE_NAMES, "LLM"))
        if engine:
            given: dict[str, Any] = {**engine}
            config = replace(config or EngineConfig(), **given)
        place = device_of(device)
        kv_dtype_of(config or EngineConfig(), torch.float32, place)  # refused before loading
        check_weights_device(config or EngineConfig(), place)
        folder = resolve(model, revision=revision, storage_options=storage_options)
        self.name = model
        own = None if adapter is None else resolve_adapter(adapter, storage_options)
        if config is not None:
            found = load_config(folder)
            found.check_length(config.max_model_len, redact_forms(str(model)))
            found.check_weight_dtype(config.weight_dtype)
        self.tokenizer = Tokenizer.load(folder)
        vocab_size = load_config(folder).vocab_size
        self._defaults = load_generation_defaults(folder, generation_config, vocab_size)
        if described := self._defaults.describe(SamplingParams()):
            logger.warning("model %r %s", redact_forms(str(model)), described)
        decoder = _load_decoder(folder, own, config or EngineConfig(), self.tokenizer, place, dtype_of(dtype, place))
        self.model_config = decoder.config
        described = f"{_count(_weights(decoder))} parameters, {_plain(decoder, config)}"
        self.engine = Engine(decoder, self.tokenizer, config)
        self._described = described
        self._requests = 0
        self._finished: dict[str, Generation] = {}

    def __repr__(self) -> str:
        """Model, size, dtype, device and limits."""
        engine = self.engine
        limits = f"max_model_len={engine.max_model_len}, max_num_seqs={engine.config.max_num_seqs}"
        return f"LLM({redact_forms(str(self.name))!r}: {self._described} on {engine.device}, {limits})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            PicklingError: always.
        """
        name = redact_forms(str(self.name))
        raise pickle.PicklingError(
            f"LLM({name!r}) cannot be pickled or copied: it holds an engine, with weights and a KV pool on a device. "
            f"Send the name of the model and make LLM({name!r}) in the process that needs it; for rows on several "
            "processes there are pipeline.run and pipeline.stage."
        )

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode``, ``decode``, ``apply_chat_template``."""
        return self.tokenizer

    @known_names_only(RequestError, CALL_NAMES, what="LLM.generate")
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[Generation]:
        """Generate for every prompt, in one continuous batch.

        Args:
            prompts: texts (encoded without a template), lists of token ids, or ``{"prompt": ...}`` and
                ``{"prompt_token_ids": ...}``; or one of these.
            params: one for all, or one per prompt.
            sampling_params: ``params`` under vLLM's name.
            use_tqdm: show a progress bar; None shows one for a long list in a terminal.

        Returns:
            Prompt-major: the ``n`` samples of the first prompt, then those of the second, and so on.

        Raises:
            RequestError, CapacityError: a prompt or its parameters cannot be served; nothing was generated.
        """
        listed = list_of_prompts(prompts)
        chosen = self._with_defaults(
            params_of(either("params", params, "sampling_params", sampling_params), len(listed))
        )
        tokens = [tokenised(prompt, self.tokenizer, self.engine.max_model_len) for prompt in listed]
        requests = [r for prompt, p in zip(tokens, chosen, strict=True) for r in self._requests_of(prompt, p)]
        texts = [prompt.text for prompt, p in zip(tokens, chosen, strict=True) for _ in range(p.n)]
        added: list[str] = []
        try:
            for request in requests:
                self.engine.add(request)
                added.append(request.request_id)
            unfinished = set(added)
            with progress_bar(len(requests), use_tqdm) as advance:
                while unfinished:
                    left = len(unfinished)
                    unfinished -= self._step()
                    advance(left - len(unfinished))
        except BaseException:
            for request_id in added:
                self._forget(request_id)
            raise
        done = (self._finished.pop(r.request_id) for r in requests)
        return [g if text is None else replace(g, prompt=text) for g, text in zip(done, texts, strict=True)]

    def _with_defaults(self, params: list[SamplingParams]) -> list[SamplingParams]:
        """The parameters, with those that the model brings."""
        found = {id(one): self._defaults.applied_to(one) for one in params}
        return [found[id(one)] for one in params]

    def _step(self) -> set[str]:
        """Run one engine step; return the ids of finished requests. ``_finished`` keeps their results."""
        done = {g.request_id: g for g in self.engine.step()}
        self._finished.update(done)
        return set(done)

    def _forget(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._finished.pop(request_id, None)

    @known_names_only(RequestError, CALL_NAMES, what="LLM.chat")
    def chat(
        self,
        conversations: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        use_tqdm: bool | None = None,
    ) -> list[Generation]:
        """Generate the assistant's next turn of each conversation, through the tokenizer's chat template.

        Args:
            conversations: one list of ``{"role", "content"}`` messages, or several.
            params: as in :meth:`generate`.
            messages: ``conversations`` under vLLM's name.
            sampling_params: ``params`` under vLLM's name.
            tools: descriptions of the tools that the template offers to the model, in all conversations.
            chat_template_kwargs: variables for the template, such as ``{"enable_thinking": False}``.
            add_generation_prompt: open the assistant's turn.
            use_tqdm: as in :meth:`generate`.

        Raises:
            ConfigError: the tokenizer has no chat template.
            RequestError: the template refuses the messages.
        """
        listed = conversations_of(either("conversations", conversations, "messages", messages))
        texts = [
            self.tokenizer.apply_chat_template(
                one, add_generation_prompt, tokenize=False, tools=tools, variables=chat_template_kwargs
            )
            for one in listed
        ]
        most = self.engine.max_model_len  # the template has all tokens around a prompt
        prompts: list[Any] = [tokenised(text, self.tokenizer, most, complete=False) for text in texts]
        return self.generate(prompts, either("params", params, "sampling_params", sampling_params), use_tqdm=use_tqdm)

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt] | None = None,
        *,
        truncate: Literal["fail", "left"] = "fail",
        use_tqdm: bool | None = None,
    ) -> list[ScoreOutput]:
        """Log-probabilities of given tokens under the next-token head, in packed forwards.

        Equal beginnings are computed once, in whole pages (``EngineConfig.page_size``), so contexts may repeat.

        Args:
            prompts: contexts; in any form that :meth:`generate` takes.
            continuations: texts to score after each context, encoded apart from it; None scores the prompts
                themselves from their second token on.
            truncate: if both together exceed ``max_model_len + 1`` tokens: "fail", or drop tokens at the
                beginning of the context ("left"). Scored tokens are never dropped.
            use_tqdm: as in :meth:`generate`.

        Returns:
            One score for each prompt, in order. It does not depend on the other prompts
            (docs/design/batch-invariance.md).

        Raises:
            RequestError, CapacityError: a context or continuation is empty, or one is too long; nothing was scored.
        """
        limit = self.engine.max_model_len
        sequences = scorables_of(prompts, continuations, self.tokenizer, max_model_len=limit, truncate=truncate)
        scorer, scores = self.engine.scorer(), dict[int, ScoreOutput]()
        try:
            for key, sequence in enumerate(sequences):
                scorer.add(key, sequence.tokens, sequence.scored)
            with progress_bar(len(sequences), use_tqdm) as advance:
                while scorer.has_work():
                    done = scorer.step()
                    if done is None:  # the pages are held by streams that were begun
                        self._step()
                    for one in done or ():
                        scores[one.key] = score_of(sequences[one.key], one)
                    advance(len(done or ()))
        finally:
            scorer.clear()
        return [scores[key] for key in range(len(sequences))]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Generate for one prompt and yield the text in pieces of whole characters.

        The last :class:`Delta` carries the Generation; the joined pieces equal its ``text``. Text that may be the
        beginning of a stop string is held back. Closing the iterator early aborts the request.
        """
        (params,) = self._with_defaults(params_of(params, 1))
        if params.n != 1:
            raise RequestError(explain("n", params.n, "stream gives one sample", "Call it once per sample."))
        given = tokenised(prompt, self.tokenizer, self.engine.max_model_len)
        (request,) = self._requests_of(given, params)
        self.engine.add(request)
        text = TextStream(self.tokenizer)
        hold = max((len(stop) for stop in params.stop), default=1) - 1
        shown, whole, tokens = 0, "", 0
        try:
            while True:
                if request.request_id not in self._finished:
                    self._step()
                final = self._finished.get(request.request_id)
                if final and given.text is not None:
                    final = replace(final, prompt=given.text)
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

    def _requests_of(self, prompt: Tokenised, params: SamplingParams) -> list[Request]:
        """The n requests of a prompt."""
        self._requests += 1
        seed = params.seed if params.seed is not None else row_seed(self.engine.config.seed, str(self._requests))
        return [
            Request(
                request_id=f"{self._requests}.{i}",
                prompt_token_ids=prompt.ids,
                params=params,
                seed=sample_seed(seed, i),
                sample_index=i,
            )
            for i in range(params.n)
        ]


def _load_decoder(
    folder: Path, adapter: Path | None, config: EngineConfig, tokenizer: Tokenizer, device: torch.device,
    dtype: torch.dtype,
) -> Decoder:  # fmt: skip
    weight_dtype, head = config.weight_dtype, config.quantised_head
    smoothing = None
    if config.smoothing != "off":
        found = read_checkpoint(folder)
        found = found if adapter is None else with_adapter(found, adapter)
        smoothing = smoothing_of(
            config.smoothing, found, tokenizer.encode_batch, weight_dtype=weight_dtype, head=head, device=device
        )
    return load_model(
        folder, device=device, dtype=dtype, weight_dtype=weight_dtype, quantised_head=head, smoothing=smoothing,
        packed=takes_panels(config, device, dtype), adapter=adapter,
    )  # fmt: skip


def _count(number: int) -> str:
    """A count of parameters as people say it: 1.1M, 7.6B."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def _weights(decoder: Decoder) -> int:
    """Weights of a decoder; tied ones count once."""
    bytes_ = {b.data_ptr(): b.numel() for b in decoder.buffers() if b.element_size() == 1}
    halves = sum(one.weight.numel() - one.multiplier_OG.numel() for one in decoder.modules()
                 if isinstance(one, Int4Linear))  # fmt: skip
    found = (getattr(one, "panels", None) for one in decoder.modules())
    packed = {id(panels): panels.outputs * panels.inputs for panels in found if panels is not None}
    return sum(w.numel() for w in decoder.parameters()) + sum(bytes_.values()) + halves + sum(packed.values())


def _plain(decoder: Decoder, config: EngineConfig | None) -> str:
    plain = str(decoder.dtype).removeprefix("torch.")
    return plain if config is None or config.weight_dtype == "auto" else f"{plain} with {config.weight_dtype} weights"

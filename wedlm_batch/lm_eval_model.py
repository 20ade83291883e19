"""The model ``wedlm_batch`` of lm-eval (EleutherAI's harness, extra ``eval``): one :class:`LLM` serves its three calls.

lm-eval finds models of other packages only once they are imported, and its command imports none. So
``wedlm-batch lm-eval`` is its command with this model registered; in Python, import this module before
``lm_eval.simple_evaluate(model="wedlm_batch", ...)``.

``--model_args``: ``pretrained`` (as the ``model`` of :class:`LLM`), ``dtype``, ``device``, ``max_length``,
``max_gen_toks``, every field of ``EngineConfig``, and those of ``SamplingParams`` that say how tokens are decoded
(``strategy``, ``window_size``, ``entropy_threshold``, ``position_penalty``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wedlm_base.names import load

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise ImportError(f"{error}. lm-eval is not installed: pip install 'wedlm-batch[eval]'") from error

_NO_MODEL = 'pretrained: model not given. Name a folder, a URL or a hub id ("tiny" is the small model that is shipped).'
_DECODING = ("strategy", "window_size", "entropy_threshold", "position_penalty")
_IGNORED = ("batch_size", "max_batch_size", "trust_remote_code", "add_bos_token")
"""Arguments that lm-eval passes to every model, or people copy from others: batches are continuous, code of models
never runs."""


@register_model("wedlm_batch")
class WeDLMBatchLM(TemplateLM):
    """One LLM. All requests of a call are one continuous batch; log-likelihoods are of the next-token head.

    Args:
        pretrained: model name, folder, URL or hub id. It has no default: empty is an error.
        max_length: tokens of prompt and continuation; the model's own by default.
        max_gen_toks: tokens to generate where a task does not say.
        device: "auto", "cpu", "cuda:1" ...; lm-eval's default, "cuda:0", is taken as "auto".
        **options: see this module; unknown ones are an error that names the nearest.
    """

    def __init__(
        self,
        pretrained: str = "",
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        core = load("wedlm_core")
        self._params_class, self._error = core.SamplingParams, core.RequestError
        if not pretrained:
            raise core.ConfigError(_NO_MODEL)
        for name in _IGNORED:
            options.pop(name, None)
        self._decoding = {name: options.pop(name) for name in _DECODING if name in options}
        core.SamplingParams(**self._decoding)  # a wrong value is refused before the model is loaded
        if max_length is not None:
            options["max_model_len"] = max_length
        # lm-eval passes "cuda:0" if no device was named.
        place = "auto" if device in (None, "cuda", "cuda:0") else str(device)
        self.llm = core.LLM(str(pretrained), device=place, **options)
        self.max_length: int = self.llm.engine.max_model_len
        self.max_gen_toks = int(max_gen_toks)
        self._name = str(pretrained)

    # ---- tokens and templates ---------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """End of sequence; also the prefix of a text without a context."""
        ends = self.llm.engine.eos_token_ids
        if not ends:
            raise self._error("the tokenizer has no end-of-sequence token, which lm-eval needs. Set eos_token.")
        return int(ends[0])

    @property
    def tokenizer_name(self) -> str:
        """Tells caches of requests apart."""
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; none are added."""
        return list(self.llm.tokenizer.encode(string))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text, by the model's own template."""
        return str(self.llm.tokenizer.apply_chat_template(chat_history, add_generation_prompt, tokenize=False))

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The name of the template of :meth:`apply_chat_template`, for lm-eval's records; it has one template."""
        if not chat_template:
            return None
        if isinstance(chat_template, str):
            raise self._error(f"chat_template={chat_template!r}: a model has one template. Use --apply_chat_template.")
        return f"chat template of {self._name}"

    # ---- the three calls --------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Score continuations in one batch; contexts that are too long lose their beginning."""
        given = [place for place, (_, _, continuation) in enumerate(requests) if continuation]
        scores = self.llm.score(
            [requests[place][1] for place in given],
            [requests[place][2] for place in given],
            truncate="left",
            use_tqdm=False if disable_tqdm else None,
        )
        found = [(0.0, True)] * len(requests)  # of nothing
        for place, score in zip(given, scores, strict=True):
            if score.error is not None:
                raise self._error(score.error)
            found[place] = (score.logprob, score.is_greedy)
        for (key, _, _), one in zip(requests, found, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, one)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of the model's length; all windows of all texts in one batch."""
        pairs, owners = [], []
        for place, request in enumerate(requests):
            (text,) = request.args
            tokens = self.tok_encode(text)
            windows = get_rolling_token_windows(tokens, self.eot_token_id, self.max_length, context_len=1)
            for context, continuation in map(make_disjoint_window, windows):
                pairs.append((None, context, continuation))
                owners.append(place)
        parts: list[list[float]] = [[] for _ in requests]
        scores = self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)
        for owner, (logprob, _) in zip(owners, scores, strict=True):
            parts[owner].append(logprob)
        found = [math.fsum(part) for part in parts]
        for request, one in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, one)
        return found

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate for all contexts in one continuous batch, each with its own arguments."""
        prompts, params = [], []
        for request in requests:
            context, given = request.args
            own = self._params_of(given)
            room = self.max_length - own.max_tokens
            prompts.append(self.tok_encode(context)[-room:])
            params.append(own)
        done = self.llm.generate(prompts, params, use_tqdm=False if disable_tqdm else None)
        texts = []
        for request, one in zip(requests, done, strict=True):
            if one.error is not None:
                raise self._error(one.error)
            texts.append(one.text)
            self.cache_hook.add_partial("generate_until", request.args, one.text)
        return texts

    def _params_of(self, given: Mapping[str, Any]) -> Any:
        """Sampling parameters of lm-eval's generation arguments."""
        own: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), default_max_gen_toks=self.max_gen_toks))
        own.pop("do_sample", None)
        until = [text for text in own.pop("until") if text]
        most = int(own.pop("max_gen_toks"))
        if most >= self.max_length:
            raise self._error(
                f"max_gen_toks={most}: at most max_length - 1 = {self.max_length - 1} tokens, so that one token of the "
                "prompt is left. Set it with --gen_kwargs, or a longer max_length."
            )
        # Special tokens are no part of the text: they end it by their ids.
        special = {
            text: ids[0] for text in until if len(ids := self.tok_encode(text)) == 1 and self._is_special(ids[0])
        }
        return self._params_class(
            **self._decoding,
            **own,
            max_tokens=most,
            stop=[text for text in until if text not in special],
            stop_token_ids=list(special.values()),
        )

    def _is_special(self, token: int) -> bool:
        return self.llm.tokenizer.decode([token]) == "" != self.llm.tokenizer.decode([token], skip_special_tokens=False)

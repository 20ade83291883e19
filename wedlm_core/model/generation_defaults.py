"""Sampling parameters that a model brings in its ``generation_config.json``, or else its ``config.json``. No torch.

transformers applies them whatever decodes, greedy decoding included, so text that ignores them is other text. Those
that concern sampling (``temperature``, ``top_p``, ``top_k``) are left to the caller.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wedlm_core.errors import ConfigError, RequestError, explain
from wedlm_core.model.checkpoint import read_json
from wedlm_core.sampling_params import SamplingParams

FILE = "generation_config.json"
GENERATION_CONFIGS = ("auto", "off")
"""Values of the setting ``generation_config``."""


_NOT_HERE = (
    "bad_words_ids", "begin_suppress_tokens", "constraints", "dola_layers", "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty", "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id",
    "forced_eos_token_id", "guidance_scale", "min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beams",
    "penalty_alpha", "sequence_bias", "stop_strings", "token_healing", "watermarking_config",
)  # fmt: skip
"""Entries that change the greedy text of transformers, and that are not applied here."""


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """The parameters that a model brings.

    Attributes:
        values: by their names in :class:`SamplingParams`; empty where it brings none.
        others: names of entries that transformers applies and that are not applied here.
        file: the name of the file that has them.
    """

    values: Mapping[str, Any]
    others: tuple[str, ...] = ()
    file: str = FILE

    def missing_in(self, params: SamplingParams, given: Collection[str] = ()) -> dict[str, Any]:
        """The parameters that ``params`` leave at their neutral value, and that their strategy can follow.

        Args:
            params: of a request or a run.
            given: names that were given, even with a neutral value.
        """
        neutral = SamplingParams()
        open_ = {n: v for n, v in self.values.items() if n not in given and getattr(params, n) == getattr(neutral, n)}
        return open_ if params.verifies else {n: v for n, v in open_.items() if n != "repetition_penalty"}

    def applied_to(self, params: SamplingParams, given: Collection[str] = ()) -> SamplingParams:
        """``params`` with :meth:`missing_in`."""
        missing = self.missing_in(params, given)
        return replace(params, **missing) if missing else params

    def describe(self, params: SamplingParams) -> str:
        """Which of them ``params`` get, as the end of a sentence about the model; empty where it brings none."""
        applied = self.missing_in(params)
        left = [name for name in self.values if name not in applied]
        parts = [f"{_shown(applied)} applied"] if applied else []
        parts += [f"{', '.join(left)} not applied (set otherwise, or not for this strategy)"] if left else []
        parts += [f"{', '.join(self.others)} not applied (not known here)"] if self.others else []
        return f"brings {self.file}: {'; '.join(parts)}" if parts else ""


def load_generation_defaults(folder: str | os.PathLike[str], setting: str, vocab_size: int) -> GenerationDefaults:
    """Read the defaults of a model folder; as transformers does, from ``config.json`` if there is no :data:`FILE`.

    Args:
        folder: of the model.
        setting: "auto"; or "off", which gives none.
        vocab_size: of the model; ids beyond it suppress nothing.

    Raises:
        WeightsError: the file is not JSON.
        ConfigError: a value, or the setting, is out of its range.
    """
    if setting not in GENERATION_CONFIGS:
        raise ConfigError(explain("generation_config", setting, f"one of {list(GENERATION_CONFIGS)}", 'Use "auto".'))
    file = FILE if (Path(folder) / FILE).exists() else "config.json"
    raw = read_json(Path(folder) / file) if setting == "auto" else {}
    penalty, tokens = raw.get("repetition_penalty"), raw.get("suppress_tokens")
    if isinstance(tokens, list):
        tokens = [token for token in tokens if not isinstance(token, int) or 0 <= token < vocab_size]
    given: dict[str, Any] = {"repetition_penalty": penalty, "suppress_tokens": tokens}
    try:
        params = SamplingParams(**{name: value for name, value in given.items() if value is not None})
    except RequestError as error:
        raise ConfigError(f'{file}: {error} Or set generation_config="off".') from error
    neutral = SamplingParams()
    values = {name: getattr(params, name) for name in given}
    others = tuple(name for name in _NOT_HERE if raw.get(name) not in (None, False, 0, 1, [], {}))
    own = {n: v for n, v in values.items() if v != getattr(neutral, n)}
    return GenerationDefaults(values=own, others=others, file=file)


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{n}={v}" if not isinstance(v, tuple) else f"{n} ({len(v)} ids)" for n, v in values.items())

"""The model's files: finds the folder, hashes and checks it, loads the tokenizer. Imports no torch."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts.rendering import render_chat
from pipeline.storage.open import check_reachable
from wedlm_core.config import ModelConfig
from wedlm_core.engine.scheduling.admission import WITHOUT_MASKS
from wedlm_core.file_digest import file_digest
from wedlm_core.host_memory import available_memory, pool_bytes
from wedlm_core.model.adapter import resolve_adapter, with_adapter
from wedlm_core.model.checkpoint import Checkpoint, how_to_convert, load_config, read_checkpoint, read_json
from wedlm_core.model.generation_defaults import GenerationDefaults, load_generation_defaults
from wedlm_core.model.memory import WEIGHT_DTYPES, kv_bytes_per_token, weight_bytes
from wedlm_core.model.smoothing_names import SMOOTHING_FILE, check_file, smoothing_digest, smoothing_path
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class ResolvedModel:
    """A model whose files were found; each of them is read once, when it is first asked for.

    Attributes:
        folder: with the files; they were downloaded if necessary.
        adapter: the same of its adapter, if it has one.
    """

    folder: Path
    adapter: Path | None = None

    @functools.cached_property
    def config(self) -> ModelConfig:
        """Its configuration.

        Raises:
            WeightsError: it cannot be read.
        """
        return load_config(self.folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, which renders chats in a process with limits.

        Raises:
            WeightsError: it cannot be read.
        """
        tokenizer = Tokenizer.load(self.folder)
        tokenizer.render_chat = render_chat
        return tokenizer

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        return {}

    @functools.cached_property
    def _defaults(self) -> dict[str, GenerationDefaults]:
        return {}

    def digest(self, smoothing: str) -> str:
        """Hash of configuration, tokenizer and weights, and of their smoothing (of large files: size and samples)."""
        if smoothing not in self._digests:
            own = smoothing_digest(smoothing, self.folder)
            self._digests[smoothing] = f"{self.files_digest}+{own}" if own else self.files_digest
        return self._digests[smoothing]

    @property
    def files_digest(self) -> str:
        """:meth:`digest` without smoothing."""
        own = folder_digest(self.folder)
        return own if self.adapter is None else f"{own}-{folder_digest(self.adapter)}"

    def generation_defaults(self, setting: str) -> GenerationDefaults:
        """Sampling parameters that the model brings, unless ``setting`` is "off".

        Raises:
            ConfigError: one of them is out of its range.
        """
        if setting not in self._defaults:
            self._defaults[setting] = load_generation_defaults(self.folder, setting, self.config.vocab_size)
        return self._defaults[setting]


def resolved_model(config: RunConfig) -> ResolvedModel:
    """The model of a run. A process finds it once; :func:`check_model` looks again.

    Raises:
        ConfigError: the configuration names no model.
        WeightsError: it cannot be found.
    """
    if not config.model:
        raise ConfigError(
            'model not given. Name a folder, a URL or a hub id ("tiny" is the small model that is shipped).'
        )
    options = json.dumps(dict(config.storage_options), sort_keys=True, default=str)
    return _resolved(config.model, config.adapter, config.revision, options)


@functools.lru_cache(maxsize=4)
def _resolved(model: str, adapter: str | None, revision: str | None, options: str) -> ResolvedModel:
    given = json.loads(options) or None
    folder = resolve(model, revision, given)
    return ResolvedModel(folder, None if adapter is None else resolve_adapter(adapter, given))


def smoothing_of(config: RunConfig, digest: str) -> str:
    """The model's smoothing when it had this digest. Which one it was, a digest says by its content alone.

    It is "off" where the model is another one: any engine has another digest with that one.

    Raises:
        ConfigError: it was a file outside of the folder of the weights.
    """
    model, _, own = digest.partition("+")
    resolved = resolved_model(config)
    folder = resolved.folder
    if not own or resolved.files_digest != model:
        return "off"
    for setting in ("sample", "model"):
        if smoothing_digest(setting, folder) == own:
            return setting
    raise ConfigError(
        f"model={config.model_name!r}: its weights were smoothed by a file that is not in {folder}. Give a folder "
        f"with the model and that file, as {SMOOTHING_FILE}."
    )


def folder_digest(folder: Path) -> str:
    """Hash of the files of a model, without smoothing; see :meth:`ResolvedModel.digest`."""
    digest = hashlib.blake2b(digest_size=12)
    # The file of a smoothing counts where it is used (above), unless the weights themselves are in one of its name.
    is_shard = any(SMOOTHING_FILE.encode() in path.read_bytes() for path in folder.glob("*.safetensors.index.json"))
    for path in sorted(folder.iterdir()):
        read = path.is_file() and (path.suffix in (".json", ".safetensors", ".jinja") or path.name == "merges.txt")
        if read and (is_shard or path.name != SMOOTHING_FILE):
            digest.update(f"{path.name}\x1f{file_digest(path)}\x1f".encode())
    return digest.hexdigest()


def check_same_model(config: RunConfig, wanted: str) -> None:
    """Check that this process loads the same model as the driver; computed once per process.

    ``wanted``: the driver's digest; empty skips the check.

    Raises:
        ConfigError: the model's files have changed since the run began.
    """
    model = resolved_model(config) if wanted else None
    if model is not None and model.digest(config.engine.smoothing) != wanted:
        raise ConfigError(
            f"model={config.model_name!r}: {model.folder} has changed since the run began. Restore it and run "
            "again to continue; or start again with mode='new'."
        )


def check_model(config: RunConfig) -> Checkpoint:
    """Check that the model's folder has the files that the run needs; quick, as it loads neither weights nor tokenizer.

    Raises:
        WeightsError: the model cannot be found, or its weights are not those of its configuration.
        ConfigError: no model is named; it is of an architecture that is not implemented; it is made for fewer
            positions than ``max_model_len``, or its layers do not fit ``weight_dtype``; it has no tokenizer; or the
            run wants a chat template and the tokenizer has none.
    """
    for name in ("model", "adapter"):
        check_reachable(getattr(config, name) or "", config.storage_options, name, ConfigError)
    _resolved.cache_clear()  # its files may be others than at the last run of this process
    folder = resolved_model(config).folder
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"model={config.model!r}: {folder} has no tokenizer.json. Save its fast tokenizer there.")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model={config.model!r}: {folder} has no weights (*.safetensors). {how_to_convert(folder)}")
    _check_smoothing(config, folder)
    found, adapter = read_checkpoint(folder), resolved_model(config).adapter
    found = found if adapter is None else with_adapter(found, adapter)
    found.config.check_length(config.engine.max_model_len, config.model_name, "engine.max_model_len")
    found.config.check_weight_dtype(config.engine.weight_dtype)
    if config.chat or any(name is not None for name in _of_chats(config)):
        _check_chat_template(config, folder)
    return found


def model_notes(config: RunConfig, model: ModelConfig) -> tuple[str, ...]:
    """Lines that users should see of a checked model before a run begins.

    Raises:
        ConfigError: see :meth:`ResolvedModel.generation_defaults`.
    """
    resolved = resolved_model(config)
    about = (
        WITHOUT_MASKS if model.mask_token_id is None and resolved.tokenizer.mask_token_id is None else "",
        resolved.generation_defaults(config.generation_config).describe(config.sampling),
    )
    return tuple(f"model={config.model_name!r} {one}" for one in about if one)


def _check_smoothing(config: RunConfig, folder: Path) -> None:
    path = smoothing_path(config.engine.smoothing, folder)
    if path is not None:
        check_file(path, "engine.smoothing")


def _of_chats(config: RunConfig) -> tuple[str | None, ...]:
    return config.system_prompt, config.messages_column, config.turns_column


def _check_chat_template(config: RunConfig, folder: Path) -> None:
    named = read_json(folder / "tokenizer_config.json").get("chat_template")
    if not named and not (folder / "chat_template.jinja").is_file():
        raise ConfigError(
            f"model={config.model!r}: chat, system_prompt, messages or turns need a chat template, and its tokenizer "
            "has none. Drop them, or add a template to its tokenizer_config.json."
        )


def model_length(config: RunConfig) -> int:
    """The limit of prompt tokens plus ``max_tokens`` in the run's engine.

    Raises:
        WeightsError: the model cannot be found.
    """
    return config.engine.max_model_len or resolved_model(config).config.max_position_embeddings


_COMPARED = ("float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True, kw_only=True)
class ModelMemory:
    """Memory of one actor, in bytes.

    Attributes:
        weights: by the name of the numbers they are kept in; the run's own among them.
        numbers: the run's own.
        kv_token: keys and values of a token.
        sequences: that run at once, at most.
        length: tokens of a sequence, at most.
        free: memory of this machine that is free, if the actors run on its CPU; else None.
        actors: that share it.
    """

    weights: Mapping[str, int]
    numbers: str
    kv_token: int
    sequences: int
    length: int
    free: int | None = None
    actors: int = 1

    @property
    def kv(self) -> int:
        """Keys and values of all sequences at their full length."""
        return self.kv_token * self.sequences * self.length

    @property
    def lines(self) -> tuple[str, ...]:
        """Two facts for people."""
        own = ", ".join(f"{_size(value)} in {name}" for name, value in self.weights.items())
        return (
            f"weights: {own}; this run takes {self.numbers}",
            f"keys and values: {_size(self.kv_token)} a token, {_size(self.kv)} for {self.sequences} sequences of "
            f"{self.length} tokens{self._held()}",
        )

    @property
    def shortfall(self) -> str | None:
        """Why the weights do not fit in this machine's memory, and which would; None if they do, or it is unknown."""
        if self.free is None or self.weights[self.numbers] * self.actors <= self.free:
            return None
        fitting = [name for name, value in self.weights.items() if value * self.actors <= self.free]
        advice = f"{' and '.join(fitting)} would fit" if fitting else "no other numbers of this model would fit either"
        many = f" of each of {self.actors} actors" if self.actors > 1 else ""
        return (
            f"the weights{many} take {_size(self.weights[self.numbers])} in {self.numbers}, and {_size(self.free)} of "
            f"memory are free here: {advice}"
        )

    def _held(self) -> str:
        """How many sequences of full length the default pool of this machine holds, if they are fewer."""
        if self.free is None or not self.kv_token:
            return ""
        left = max(0, self.free // self.actors - self.weights[self.numbers])
        held = pool_bytes(left) // (self.kv_token * self.length)
        return "" if held >= self.sequences else f"; the default pool here holds {held} of them at once"


def model_memory(config: RunConfig, model: ModelConfig, *, on_cpu: bool) -> ModelMemory:
    """The memory that a run's model takes.

    Of several pools, the first counts. ``on_cpu``: whether the actors run on the CPU of this machine.
    """
    run = next(iter(config.runs_of_pools().values()))
    engine, dtype = run.engine, run.dtype
    if dtype == "auto":
        dtype = "float32" if on_cpu else "bfloat16"
    numbers = dtype if engine.weight_dtype == "auto" else engine.weight_dtype
    wide = dict.fromkeys(("float32", "bfloat16", dtype))
    narrow = [name for name in dict.fromkeys((*_COMPARED, numbers)) if name in WEIGHT_DTYPES]
    if on_cpu:
        narrow = [name for name in narrow if name != "int4"]
    weights = {name: weight_bytes(model, dtype=name) for name in wide}
    weights |= {
        name: weight_bytes(model, dtype=dtype, weight_dtype=name, quantised_head=engine.quantised_head)
        for name in narrow
    }
    return ModelMemory(
        weights=weights,
        numbers=numbers,
        kv_token=kv_bytes_per_token(model, numbers=engine.kv_numbers(dtype)),
        sequences=engine.max_num_seqs,
        length=engine.max_model_len or model.max_position_embeddings,
        free=available_memory() if on_cpu else None,
        actors=config.most_actors,
    )


def _size(value: float) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f} {unit}"
    return f"{value:.0f} B"

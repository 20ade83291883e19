"""Pools of generate actors: their number, the resources of each, and settings that differ between pools.

Nothing here changes the output, so none of it is part of a run's fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pipeline.codec import EngineConfig, known_fields_only
from pipeline.errors import ConfigError
from pipeline.settings.values import is_int, is_number, require

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory", "accelerator_type:", "node:")
_LEAST_SHARE = 1e-4
"""Ray counts resources in these."""

_PER_POOL = (
    "max_num_seqs", "max_batch_rows", "prefill_chunk", "page_size", "num_pages", "kv_cache_bytes",
    "gpu_memory_utilization", "prefix_caching", "attention", "logits_chunk_rows", "logits_chunk_bytes", "step_cost",
    "history_drafts", "history_bytes", "overlap", "cuda_graphs", "graph_rows", "graph_seconds", "graph_bytes",
)  # fmt: skip
"""Engine settings that do not bear on tokens; the others are the same for all actors of a run."""


@known_fields_only(ConfigError, {})
@dataclass(frozen=True, kw_only=True)
class ActorRange:
    """A number of generate actors that follows the work.

    Attributes:
        min: actors that stay while the run has work, even if they are idle.
        max: most actors that are requested.
        idle_seconds: an actor above ``min`` is ended after this time without a unit.

    Raises:
        ConfigError: a value is out of range.
    """

    min: int = 1
    max: int
    idle_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the values."""
        require(is_int(self.min) and self.min >= 0, "actors.min", self.min, "an integer of 0 or more", "Use 1.")
        require(is_int(self.max) and self.max >= 1, "actors.max", self.max, "an integer of 1 or more", "Give a count.")
        require(self.min <= self.max, "actors.min", self.min, f"at most actors.max, which is {self.max}",
                "Lower min, or raise max.")  # fmt: skip
        require(is_number(self.idle_seconds) and self.idle_seconds >= 0, "actors.idle_seconds", self.idle_seconds,
                "a number of 0 or more", "Use 60.")  # fmt: skip


@known_fields_only(ConfigError, {})
@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """One pool of several that take units from one queue; None is the run's value.

    Attributes:
        actors: a number, or an :class:`ActorRange`.
        gpus_per_actor, cpus_per_actor, accelerator_type, resources_per_actor, actors_per_node: see ``RunConfig``.
        num_threads, device: see ``RunConfig``.
        engine: engine settings in place of the run's; those that bear on tokens cannot differ between pools.

    Raises:
        ConfigError: a value is out of range, or an engine setting bears on tokens.
    """

    actors: int | ActorRange = 1
    gpus_per_actor: float | Literal["auto"] | None = None
    cpus_per_actor: float | Literal["auto"] | None = None
    accelerator_type: str | None = None
    resources_per_actor: Mapping[str, float] | None = None
    actors_per_node: int | None = None
    num_threads: int | None = None
    device: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check everything that does not depend on the run; the rest is checked where the pool meets its run."""
        object.__setattr__(self, "actors", actor_range(self.actors))
        check_actors(self.actors)
        require(isinstance(self.engine, Mapping), "engine", self.engine, "a mapping of engine settings",
                "Write {max_num_seqs: 32}.")  # fmt: skip
        known = {f.name for f in fields(EngineConfig)}
        for name in self.engine:
            require(name in known, f"engine.{name}", self.engine[name], "no such engine setting",
                    f"A pool may set {', '.join(_PER_POOL)}.")  # fmt: skip
            require(name in _PER_POOL, f"engine.{name}", self.engine[name],
                    "it bears on tokens, and all actors of a run give the same",
                    "Set it for the whole run, under engine.")  # fmt: skip

    def overrides(self) -> dict[str, Any]:
        """Fields of the run that this pool has values of its own for; ``engine`` and ``actors`` are left out."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("engine", "actors")}
        return {name: value for name, value in own.items() if value is not None}


def actor_range(given: Any) -> Any:
    """A mapping as an :class:`ActorRange`; anything else as it is.

    Raises:
        ConfigError: unknown fields, or no ``max``.
    """
    if not isinstance(given, Mapping):
        return given
    require("max" in given, "actors", dict(given), "a range has a max", "Write {min: 1, max: 64}.")
    return ActorRange(**{str(name): value for name, value in given.items()})


def pool_config(name: object, given: Any) -> PoolConfig:
    """A pool from plain data, with its name in front of messages about it.

    Raises:
        ConfigError: the name or a field is bad.
    """
    require(isinstance(name, str) and _NAME.fullmatch(name) is not None, "pools", name,
            "a name of 1 to 32 of a-z, 0-9, _ and -", "Rename the pool.")  # fmt: skip
    if isinstance(given, PoolConfig):
        return given
    require(isinstance(given, Mapping), f"pools.{name}", given, "a mapping of fields", "Write {actors: 2}.")
    try:
        return PoolConfig(**{str(key): value for key, value in given.items()})
    except ConfigError as error:
        raise ConfigError(f"pools.{name}.{error}") from error


def check_actors(actors: object) -> None:
    """Raise a ConfigError unless this is a number of actors, or a range."""
    require(isinstance(actors, ActorRange) or (is_int(actors) and actors >= 1), "actors", actors,  # type: ignore[operator]
            "an integer of 1 or more, or a range", "Give a count, or {min: 1, max: 64}.")  # fmt: skip


def check_reserved(config: Any) -> None:
    """Check the resources and places of an actor of a run, or of a pool of it. ``config``: a ``RunConfig``.

    Raises:
        ConfigError: a value is out of range.
    """
    for name in ("gpus_per_actor", "cpus_per_actor"):
        value = getattr(config, name)
        require(value == "auto" or (is_number(value) and value >= 0), name, value, '"auto" or a number of 0 or more',
                'Use "auto".')  # fmt: skip
    gpus = config.gpus_per_actor
    require(gpus == "auto" or gpus <= 1 or float(gpus).is_integer(), "gpus_per_actor", gpus,
            "a share of one GPU, or a whole number", "Round it.")  # fmt: skip
    kind = config.accelerator_type
    require(kind is None or (isinstance(kind, str) and kind != ""), "accelerator_type", kind,
            "None or a name that nodes have in Ray", 'Use a name such as "H100", or leave it out.')  # fmt: skip
    custom = config.resources_per_actor
    require(isinstance(custom, Mapping), "resources_per_actor", custom, "a mapping of names to amounts",
            "Write {spot: 0.1}.")  # fmt: skip
    for name, amount in custom.items():
        require(isinstance(name, str) and name != "" and not name.startswith(_RAYS_OWN), "resources_per_actor", name,
                f"a custom resource, none of Ray's own ({', '.join(_RAYS_OWN)})",
                "Use cpus_per_actor, gpus_per_actor or accelerator_type for those.")  # fmt: skip
        fine = is_number(amount) and amount >= _LEAST_SHARE and (amount <= 1 or float(amount).is_integer())
        require(fine, f"resources_per_actor.{name}", amount, "0.0001 to 1, or a whole number", "Round it.")
    per_node = config.actors_per_node
    require(per_node is None or (is_int(per_node) and 1 <= per_node <= 1 / _LEAST_SHARE), "actors_per_node", per_node,
            "None or an integer of 1 to 10000", "Drop it to let resources decide.")  # fmt: skip
    require(config.num_threads is None or (is_int(config.num_threads) and config.num_threads >= 1), "num_threads",
            config.num_threads, "None or an integer of 1 or more", "Drop it to use the default.")  # fmt: skip
    require(isinstance(config.device, str) and _DEVICE.fullmatch(config.device) is not None, "device", config.device,
            'one of "auto", "cpu", "cuda", "cuda:N"', 'Use "auto".')  # fmt: skip

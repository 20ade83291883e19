"""Memory of a run's model in an actor: weights in each dtype, keys and values, and whether they fit. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config import RunConfig
from wedlm_core.config import ModelConfig
from wedlm_core.host_memory import available_memory, pool_bytes
from wedlm_core.model.memory import WEIGHT_DTYPES, kv_bytes_per_token, weight_bytes

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
        """Why the weights do not fit in this machine's memory, and which would; None if they do, or nobody knows."""
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

    Args:
        config: the run; of several pools, the first counts.
        model: of its checkpoint.
        on_cpu: whether the actors run on the CPU of this machine.
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

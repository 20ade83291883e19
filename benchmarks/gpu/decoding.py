"""GPU minutes: the engine of the random model, and timed slices of steady decoding.

The prompts of a context length are the same in every run, and their full pages stay in the prefix cache. So only the
first run of a context length has to prefill them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.decode.random_model import random_decoder
from benchmarks.gpu.section import Scene, synchronise
from wedlm_core import EngineConfig, Request, SamplingParams, Strategy
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.seeds import row_seed
from wedlm_core.tokenizer import Tokenizer

AUTO: Mapping[str, Any] = {"strategy": Strategy.VERIFIED, "window_size": "auto"}
AUTOREGRESSIVE: Mapping[str, Any] = {"strategy": Strategy.AUTOREGRESSIVE}

_NUMBERS = itertools.count()
_WARM_STEPS = 10  # until windows reach a steady size
_SETTLED_STEPS = 36  # steps without a capture of a graph, which takes as long as a dozen steps
_SETTLE_SECONDS = 2.0
_TRIES = 4
_WINDOW = 16
_TARGETS = {"low": 6.0, "medium": 3.0, "high": 1.3}  # tokens per forward at a fixed window of 16
_PROBE_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A timed part of a run with a fixed set of decoding sequences.

    Attributes:
        seconds: wall-clock time, with the device synchronised at both ends.
        steps: engine steps.
        tokens: committed tokens.
        sequences: sequences that decoded.
    """

    seconds: float
    steps: int
    tokens: int
    sequences: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        """Seconds per step."""
        return self.seconds / max(1, self.steps)

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per forward of one sequence."""
        return self.tokens / max(1, self.steps * self.sequences)


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A level of draft acceptance, simulated by a temperature.

    Attributes:
        name: low, medium or high entropy.
        temperature: at this one draft and verification, which share their noise, agree as often as wanted.
        tokens_per_forward: measured for ``verified`` with a fixed window of 16.
    """

    name: str
    temperature: float
    tokens_per_forward: float

    def described(self) -> str:
        """A description for tables."""
        return f"T = {self.temperature:.3g}: {self.tokens_per_forward:.2f} tokens/forward at W = 16"


class Subject:
    """The engine of the random model.

    Attributes:
        engine: the engine, with room for the largest batch of the suite.
        model: its decoder.
        weights, weight_bytes: weights that a forward reads, and their bytes in the engine, scales included. An
            embedding counts only if it is also the head.
        kv_bytes: bytes of one token's keys and values.
        seconds: time to build the model and the engine.
        prefills: ``(sequences, context, tokens per second)`` of each prefill.
    """

    def __init__(self, scene: Scene) -> None:
        scale, begin = scene.scale, time.perf_counter()
        longest = max(*scale.contexts, scale.short_context) + 2 * scale.max_tokens
        reach = longest + 2 * EngineConfig().max_window + 2
        if scene.model is None:
            model = random_decoder(scale.config, device=scene.device, dtype=scale.dtype, max_positions=reach)
        else:
            model = load_model(scene.model, device=scene.device, dtype=scale.dtype, max_positions=reach)
        layers = (model.layers, model.norm)
        self.weights = sum(each.numel() for each in _tensors(*layers, model.lm_head))
        quantise(model, scene.weight_dtype)  # layer by layer, so that only one layer has its wide weights at a time
        self.weight_bytes = sum(each.nbytes for each in _tensors(*layers, model.lm_head))
        if scene.device.type == "cuda":
            torch.cuda.empty_cache()
        most = max(*scale.row_counts, *scale.batches)
        config = EngineConfig(max_num_seqs=most, max_batch_rows=max(scale.max_rows, most), max_model_len=longest,
                              batch_invariant=False, weight_dtype=scene.weight_dtype,
                              kv_cache_dtype=scene.kv_dtype)  # fmt: skip
        self.model = model
        self.engine = Engine(model, Tokenizer.load(resolve("tiny")), config)
        synchronise(scene.device)
        self.seconds = time.perf_counter() - begin
        self.prefills: list[tuple[int, int, float]] = []
        self._prepared: dict[int, int] = {}
        self.scene, self._vocab = scene, scale.config.vocab_size
        page = config.page_size
        self.kv_bytes = KVPool.bytes_per_page(scale.config, page, self.engine._runner.pool.dtype) // page

    def capacity(self, context: int) -> int:
        """Number of generating sequences with ``context`` tokens that the pool can hold at once."""
        page = self.engine.config.page_size
        each = -(-(context + self.scene.scale.max_tokens + 2 * self.engine.config.max_window + 2) // page)
        return self.engine.pages.num_pages // each

    def prompt(self, context: int, number: int) -> tuple[int, ...]:
        """Random ids: ``context`` tokens in whole pages, and one more, which later runs prefill."""
        generator = torch.Generator().manual_seed(1_000_003 * context + number)
        ids = torch.randint(self._vocab - 1, (context + 1,), generator=generator)
        mask = self.scene.scale.config.mask_token_id
        return tuple(0 if i == mask else i for i in ids.tolist())

    def _prefill(self, count: int, context: int) -> None:
        """Prefill the prompts, so that their pages are cached; a cached prompt costs one row."""
        fresh = range(self._prepared.get(context, 0), count)
        if not fresh:
            return
        params = SamplingParams(max_tokens=1, ignore_eos=True, **AUTOREGRESSIVE)
        begin, run = time.perf_counter(), next(_NUMBERS)
        for i in fresh:
            request_id = f"{run}.{i}"
            self.engine.add(Request(request_id=request_id, prompt_token_ids=self.prompt(context, i), params=params))
        while self.engine.has_work():
            self.engine.step()
        synchronise(self.scene.device)
        rate = len(fresh) * (context + 1) / (time.perf_counter() - begin)
        self.prefills.append((len(fresh), context, rate))
        self._prepared[context] = count

    @contextmanager
    def running(self, count: int, context: int, settings: Mapping[str, Any], temperature: float) -> Iterator[list[str]]:
        """Start ``count`` sequences; yield their ids once each has committed a token; abort them at the end."""
        engine, run = self.engine, next(_NUMBERS)
        params = SamplingParams(
            max_tokens=2 * self.scene.scale.max_tokens - 1, temperature=temperature, ignore_eos=True, **settings
        )
        ids = [f"{run}.{i}" for i in range(count)]
        self._prefill(count, context)
        try:
            for i, request_id in enumerate(ids):
                prompt = self.prompt(context, i)
                engine.add(
                    Request(request_id=request_id, prompt_token_ids=prompt, params=params, seed=row_seed(run, str(i)))
                )
            while not all(engine.committed(i) for i in ids):
                engine.step()
            for _ in range(_WARM_STEPS):
                engine.step()
            self._settle(ids)
            yield ids
        finally:
            for request_id in ids:
                engine.abort(request_id)

    def captured(self) -> int:
        """CUDA graphs captured so far, of the decoder and of the work around it."""
        launch = self.engine._runner.launch
        if not isinstance(launch, AsyncLaunch):
            return 0
        return sum((launch.graphs.captured if launch.graphs else 0, launch.steps.recorded if launch.steps else 0))

    def _settle(self, ids: Sequence[str]) -> None:
        """Step until no graph was captured for a while, within a time limit: a long job captures at its start."""
        begin, quiet, before = time.perf_counter(), 0, self.captured()
        if not before:
            return
        room = self.scene.scale.max_tokens // 2
        while quiet < _SETTLED_STEPS and time.perf_counter() - begin < _SETTLE_SECONDS:
            if len(self.engine.committed(ids[0])) >= room:
                return
            self.engine.step()
            quiet, before = (quiet + 1, before) if self.captured() == before else (0, self.captured())

    def slice(self, ids: Sequence[str], seconds: float, steps: int | None = None, least: int = 0) -> Slice:
        """Decode for ``seconds`` and ``least`` steps (or ``steps`` steps), or until a sequence has its maximum.

        If a graph was captured in a slice, the slice is dropped and repeated, at most three times.
        """
        for _ in range(_TRIES):
            before = self.captured()
            found = self._slice(ids, seconds, steps, least)
            if self.captured() == before:
                break
        return found

    def _slice(self, ids: Sequence[str], seconds: float, steps: int | None, least: int) -> Slice:
        engine, device, most = self.engine, self.scene.device, self.scene.scale.max_tokens
        before = sum(len(engine.committed(i)) for i in ids)
        synchronise(device)
        begin, count = time.perf_counter(), 0
        while count < (least if steps is None else steps) or (steps is None and time.perf_counter() - begin < seconds):
            engine.step()
            count += 1
            if len(engine.committed(ids[0])) >= most:
                break
        synchronise(device)
        elapsed = time.perf_counter() - begin
        tokens = sum(len(engine.committed(i)) for i in ids) - before
        return Slice(seconds=elapsed, steps=count, tokens=tokens, sequences=len(ids))


def _tensors(*modules: nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of modules, each once."""
    held = (each for module in modules for each in itertools.chain(module.parameters(), module.buffers()))
    return list({id(each): each for each in held}.values())


def open_subject(scene: Scene) -> Subject:
    """The scene's subject, built on first use.

    Raises:
        Exception: building it failed. It is tried once; later calls raise the same error.
    """
    if "subject" not in scene.kept:
        try:
            scene.kept["subject"] = Subject(scene)
        except Exception as error:
            scene.kept["subject"] = error
    found = scene.kept["subject"]
    if isinstance(found, Exception):
        raise found
    return found


def regimes(scene: Scene, subject: Subject) -> list[Regime]:
    """Find by bisection temperatures that make ``verified`` commit about 6, 3 and 1.3 tokens per forward."""
    if "regimes" not in scene.kept:
        scene.kept["regimes"] = [_regime(scene, subject, name, target) for name, target in _TARGETS.items()]
    found: list[Regime] = scene.kept["regimes"]
    return found


def _regime(scene: Scene, subject: Subject, name: str, target: float) -> Regime:
    low, high = math.log(0.05), math.log(3000.0)
    count = min(16, max(scene.scale.batches))
    best: Regime | None = None
    for _ in range(scene.scale.probes):
        middle = (low + high) / 2
        settings = {"strategy": Strategy.VERIFIED, "window_size": _WINDOW}
        with subject.running(count, scene.scale.short_context, settings, math.exp(middle)) as ids:
            found = subject.slice(ids, 0.0, steps=_PROBE_STEPS).tokens_per_forward
        one = Regime(name=name, temperature=math.exp(middle), tokens_per_forward=found)
        if best is None or abs(found - target) < abs(best.tokens_per_forward - target):
            best = one
        low, high = (middle, high) if found < target else (low, middle)
    assert best is not None
    print(f"regime {name}: {best.described()}", flush=True)
    return best

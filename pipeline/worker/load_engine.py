"""Loads the model's engine for a job in this process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from pipeline.codec import EngineConfig, SamplingParams, explain
from pipeline.errors import ConfigError
from pipeline.plan.job import Job
from pipeline.prompts.model_files import check_same_model, resolved_model
from pipeline.stages import announce, stage
from pipeline.worker.engine_thread import EngineLike
from wedlm_base.waiting import wait_passively
from wedlm_core.cache import one_at_a_time
from wedlm_core.kernels.cpu.kept import are_kept, note_kept

if TYPE_CHECKING:
    from wedlm_core.llm import LLM


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Context for imports: modules stay, and would be rescanned again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_what_is_there() -> None:
    """Leave all objects of now out of later collections; for a process that is the caller's own."""
    gc.freeze()


_FIRST_TOKENS = 8  # of a generation that compiles or loads the kernels, also those that draft after the first forwards

EngineLoader = Callable[[Job, "int | None"], EngineLike]
"""Makes an engine from a job and a number of torch threads (None: torch's default), in the process that will use it."""


def load_engine(job: Job, num_threads: int | None) -> EngineLike:
    """Load the model of a job and warm its engine up. The only place of the pipeline that imports torch."""
    wait_passively()
    with stage("torch imported"), nothing_collected():
        import torch

        from wedlm_core.llm import LLM

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    config = job.config
    with stage("model fetched"):
        resolved_model(config)  # of a URL: downloaded once per machine
    with _compiled_once(on_cpu=config.device == "cpu" or not torch.cuda.is_available()):
        with stage("model loaded"):
            llm = LLM(
                config.model,
                adapter=config.adapter,
                config=config.actor_engine,
                device=config.device,
                dtype=config.dtype,  # type: ignore[arg-type]
                revision=config.revision,
                storage_options=dict(config.storage_options) or None,
            )
        check_same_model(config, job.model_digest)  # after the weights were read, so no edit goes unnoticed
        _warm_up(llm, config.sampling)
    return llm.engine


def load_for_any_row(load: EngineLoader, pool: str, job: Job, num_threads: int | None) -> EngineLike:
    """``load``, for an actor of one of several pools: which rows fit must not depend on the pool that a row falls to.

    Raises:
        ConfigError: its KV pool is too small for a row of ``max_model_len`` tokens.
    """
    engine = load(job, num_threads)
    pages = getattr(engine, "pages", None)
    if pages is not None:
        length: int = engine.max_model_len  # type: ignore[attr-defined]
        if pages.capacity_tokens < length + 1 + 2 * job.config.engine.max_window:
            has = pages.capacity_tokens
            rule = f"the KV pool of pools.{pool} holds {has} tokens, and every pool must hold a row of this length"
            raise ConfigError(explain("engine.max_model_len", length, rule,
                                      "Lower it for the run, or give the pool more pages or memory."))  # fmt: skip
    return engine


def check_attention(engine: EngineConfig, *, on_cpu: bool, on_gpu: bool = False) -> None:
    """Check the name of the attention backend, and that it runs on the kind of device, if that is known. Imports torch.

    Whether it fits the model and this very GPU is found out in the actor, by a trial.

    Raises:
        ConfigError: it is none, or it does not run on such a device.
    """
    import torch

    from wedlm_core.attention import AttentionProblem, backend_names, resolve_backend, runs_on_cpu_only
    from wedlm_core.engine.compute_dtype import check_weights_device
    from wedlm_core.kv.pool import kv_dtype_of

    if engine.attention not in ("auto", *backend_names()):
        rule = f'one of {backend_names()} or "auto"'
        raise ConfigError(explain("engine.attention", engine.attention, rule, 'Use "auto".'))
    if on_gpu and runs_on_cpu_only(engine.attention):
        raise ConfigError(explain("engine.attention", engine.attention, "it runs on CPU only", 'Use "auto".'))
    if on_cpu:
        device = torch.device("cpu")
        check_weights_device(engine, device)
        resolve_backend(engine.attention, AttentionProblem(
            device=device, dtype=torch.float32, kv_dtype=kv_dtype_of(engine, torch.float32, device), num_heads=2,
            num_kv_heads=1, head_dim=64, page_size=engine.page_size, batch_invariant=engine.batch_invariant is True,
        ))  # fmt: skip


def count_gpus() -> int:
    """CUDA devices that this process can use. Imports torch."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def uses_gpu() -> bool:
    """Whether this process has a context on a GPU. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _warm_up(llm: LLM, sampling: SamplingParams) -> None:
    """Compile the kernels and measure the step cost now, so that no row's timings include them."""
    with stage("kernels ready"):
        _generate(llm, "autoregressive")
    if sampling.adaptive:
        with stage("step costs known"):
            llm.engine.measure_step_cost()
        if sampling.strategy == "verified":
            with stage("draft kernels ready"):
                # Of a fixed window, as drafting would learn the acceptance of this text, which is none of the job's.
                _generate(llm, "verified", window_size=1)


def _generate(llm: LLM, strategy: str, window_size: int | Literal["auto"] = "auto") -> None:
    """Generate a few tokens, no more than the engine takes."""
    most = min(_FIRST_TOKENS, llm.engine.max_model_len - 1)
    llm.generate([[0]], SamplingParams(max_tokens=most, ignore_eos=True, strategy=strategy, window_size=window_size))


@contextmanager
def _compiled_once(*, on_cpu: bool) -> Iterator[None]:
    """A block that compiles the kernels: in one process of this machine, while the others wait and load them then."""
    with ExitStack() as alone:
        compiles = on_cpu and not are_kept()
        if compiles:
            with stage("kernels ready"):  # waiting is a part of it
                alone.enter_context(one_at_a_time("kernels"))
            compiles = not are_kept()  # another process has while this one waited
        if compiles:
            announce("compiling the kernels for this CPU, once; it takes 15 to 80 s")
        else:
            alone.close()
        yield
        if compiles:
            note_kept()

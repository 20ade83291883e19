"""The parts of an engine, made for one model and one configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from wedlm_core.attention import AttentionBackend, AttentionProblem, invariant_by_default, resolve_backend
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.strategies import Decoding, decoding_of
from wedlm_core.engine.compute_dtype import check_weights_device, compute_dtype
from wedlm_core.engine.constrained.constraints import Constraints
from wedlm_core.engine.drafting.constants import DraftingConstants
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.drafting.measure import cached_or_measured_cost
from wedlm_core.engine.drafting.windows import HistoryWindows
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.overlap import async_launch, overlaps
from wedlm_core.engine.scheduling.admission import WITHOUT_MASKS, Limits
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.engine.sizing import check_room, count_pages, say_shortfall
from wedlm_core.errors import ConfigError, explain
from wedlm_core.fallback import Optimisation, Optimisations
from wedlm_core.kv.pages import PageManager
from wedlm_core.kv.pool import KVPool, kv_dtype_of
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.decoder_gpu import use_gpu_decoder
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Strategy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of an engine.

    Attributes:
        pages: of the KV pool.
        runner: of forwards.
        overlapping_launch: launches a forward before the one before it has ended; None where they do not overlap.
        limits: of requests.
        decodings: by the name of a strategy.
        groups: by the name of a strategy: its decoding's place among those of the runner.
        eos_token_ids: of the tokenizer and of the model.
        table: of slots.
        drafting: decides which drafts windows get.
        constraints: of sequences with a grammar.
        optimisations: guards of calls that only save time.
    """

    pages: PageManager
    runner: Runner
    overlapping_launch: AsyncLaunch | None
    limits: Limits
    decodings: Mapping[str, Decoding]
    groups: Mapping[str, int]
    eos_token_ids: tuple[int, ...]
    table: SlotTable
    drafting: Drafting
    constraints: Constraints
    optimisations: Optimisations


def parts_of(model: Decoder, tokenizer: Tokenizer, config: EngineConfig, constants: DraftingConstants) -> Parts:
    """The parts of an engine; see :class:`wedlm_core.engine.Engine` for arguments and errors."""
    check_weights_device(config, model.device)
    device, dtype = model.device, compute_dtype(model, config)
    backend = resolve_backend(config.attention, _problem(model, config, dtype))
    max_model_len = config.max_model_len or model.config.max_position_embeddings
    overlapping = overlaps(config, device, backend)
    # A sequence may run one forward past its end, and two where that is noticed one forward late.
    reach = max_model_len + (2 * config.max_window + 2) * (3 if overlapping else 1)
    if model.cos.shape[0] < reach:
        model.set_max_positions(reach)
    mask = _mask_token_id(model, tokenizer)
    eos_token_ids = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *model.config.eos_token_ids)))
    model.eval()
    use_gpu_decoder(model)
    optimisations = Optimisations()
    pages, pool = _pool(model, backend, config, dtype, reach, optimisations.prefixes)
    by_strategy = {s.value: decoding_of(s, config) for s in Strategy}
    decodings = list(dict.fromkeys(by_strategy.values()))
    model_runner = ModelRunner(model, pool, backend)
    overlapping_launch = async_launch(model_runner, config, reach) if overlapping else None
    table = SlotTable(config.max_num_seqs, 2 * config.max_window + 1)
    if mask is None:
        logger.warning("the model %s", WITHOUT_MASKS)
    runner = Runner(
        model_runner=model_runner,
        launch=overlapping_launch or (None if device.type == "cpu" else AsyncLaunch(model_runner)),
        config=config,
        mask_token_id=mask if mask is not None else 0,
        vocab_limit=min(max(tokenizer.vocab_size, (mask or 0) + 1), model.config.vocab_size),
        max_positions=reach,
        decodings=decodings,
    )
    drafting = Drafting(
        table, config.max_window, config.max_batch_rows,
        lambda: config.step_cost or cached_or_measured_cost(runner, pages, overlapping_launch),
        overlap=overlapping, masks=mask is not None,
        history=_history(config, table, runner.state, constants), constants=constants,
    )  # fmt: skip
    constraints = Constraints(
        tokenizer, vocab_size=model.config.vocab_size, eos_token_ids=eos_token_ids, table=table,
        mask_token_id=mask if mask is not None else 0, device=device, threads=_grammar_threads(device),
        guard=optimisations.grammars,
    )  # fmt: skip
    return Parts(
        pages=pages,
        runner=runner,
        overlapping_launch=overlapping_launch,
        limits=Limits(
            vocab_size=model.config.vocab_size,
            max_model_len=max_model_len,
            max_window=config.max_window,
            pool_tokens=pages.capacity_tokens,
            page_size=config.page_size,
            has_mask_token=mask is not None,
        ),
        decodings=by_strategy,
        groups=_groups(by_strategy, decodings),
        eos_token_ids=eos_token_ids,
        table=table,
        drafting=drafting,
        constraints=constraints,
        optimisations=optimisations,
    )


def _mask_token_id(model: Decoder, tokenizer: Tokenizer) -> int | None:
    """The id of a mask, if there is any: of the model's configuration, else of the tokenizer."""
    found, vocab = model.config.mask_token_id, model.config.vocab_size
    if found is None and (found := tokenizer.mask_token_id) is not None and found >= vocab:
        raise ConfigError(explain("mask_token_id", found, f"an id below vocab_size={vocab}", "Use its own tokenizer."))
    return found


def _grammar_threads(device: torch.device) -> int:
    """Threads that compute allowed tokens: those of a CPU's forwards, or half of the cores next to a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else max(1, (os.cpu_count() or 2) // 2)


def _problem(model: Decoder, config: EngineConfig, dtype: torch.dtype) -> AttentionProblem:
    """The needs of this model, computed in ``dtype``, from a backend."""
    device = model.device
    invariant = config.batch_invariant
    if invariant == "auto":
        invariant = invariant_by_default(config.attention, device, dtype)
    return AttentionProblem(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype_of(config, model.dtype, device),
        num_heads=model.config.num_attention_heads,
        num_kv_heads=model.config.num_key_value_heads,
        head_dim=model.config.head_dim,
        page_size=config.page_size,
        batch_invariant=bool(invariant),
    )


def _pool(
    model: Decoder,
    backend: AttentionBackend,
    config: EngineConfig,
    dtype: torch.dtype,
    reach: int,
    prefixes: Optimisation,
) -> tuple[PageManager, KVPool]:
    """The KV pool, as large as configured or as the device has room for, and who gives out its pages."""
    device = model.device
    kv_dtype = kv_dtype_of(config, model.dtype, device)

    def make_pool(pages: int) -> KVPool:
        return KVPool(
            model.config,
            pages,
            config.page_size,
            device=device,
            dtype=dtype,
            kv_dtype=kv_dtype,
            transposed_keys=backend.transposed_keys,
        )

    page_bytes = KVPool.bytes_per_page(model.config, config.page_size, kv_dtype)
    pages = count_pages(model, backend, config, reach, page_bytes, make_pool)
    check_room(config, pages * page_bytes, reach, device)
    say_shortfall(config, pages, reach, page_bytes)
    manager = PageManager(pages, config.page_size, prefix_caching=config.prefix_caching, prefixes=prefixes)
    return manager, make_pool(pages)


def _groups(by_strategy: Mapping[str, Decoding], decodings: Sequence[Decoding]) -> dict[str, int]:
    return {name: decodings.index(decoding) for name, decoding in by_strategy.items()}


def _history(
    config: EngineConfig, table: SlotTable, state: DeviceState, constants: DraftingConstants
) -> HistoryWindows | None:
    wanted = config.history_drafts if config.history_drafts != "auto" else not config.trace
    if not wanted or not config.max_window:
        return None
    return HistoryWindows(table, state, config.max_window, config.history_bytes, constants)

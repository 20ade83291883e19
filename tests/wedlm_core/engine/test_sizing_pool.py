"""The pool takes the rest of the engine's share and of the device, never more."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testing.engine.models import random_decoder
from wedlm_core.attention import AttentionBackend, AttentionProblem, resolve_backend
from wedlm_core.config import EngineConfig
from wedlm_core.engine import sizing
from wedlm_core.engine.sizing import MemoryReading, count_pages, pages_that_fit, peak_forward, say_shortfall
from wedlm_core.errors import CapacityError
from wedlm_core.kv.pool import KVPool

GIB = 1 << 30
PAGE = 9 << 20  # a page of 64 tokens of the 8B model in bfloat16


def reading(total: float, *, outside: float = 0.0, foreign: float = 0.0, fixed: float = 0.0) -> MemoryReading:
    """All in GiB."""
    peak = foreign + fixed
    return MemoryReading(
        total=int(total * GIB), outside=int(outside * GIB), foreign=int(foreign * GIB), peak=int(peak * GIB)
    )


@given(
    total=st.floats(1, 300), outside=st.floats(0, 1), foreign=st.floats(0, 1), fixed=st.floats(0, 1),
    share=st.floats(0.01, 1),
)  # fmt: skip
def test_as_many_pages_as_share_and_device_allow(
    total: float, outside: float, foreign: float, fixed: float, share: float
) -> None:
    config = EngineConfig(gpu_memory_utilization=share)
    found = reading(total, outside=outside * total, foreign=foreign * total, fixed=fixed * total)

    def fits(pages: int) -> bool:
        own = found.fixed + pages * PAGE
        return own <= share * found.total and found.outside + found.foreign + own <= found.total - found.reserve

    try:
        pages = pages_that_fit(found, config, PAGE)
    except CapacityError:
        assert not fits(2)  # 2 * 32 + 2 tokens, the window of one sequence
    else:
        assert fits(pages)
        assert not fits(pages + 1)


@given(shares=st.lists(st.floats(0.15, 0.45), min_size=2, max_size=6).filter(lambda s: sum(s) <= 0.95))
def test_engines_whose_shares_add_up_to_less_than_one_all_find_room(shares: list[float]) -> None:
    held = 0.5
    for share in shares:
        found = reading(140, outside=held, fixed=18)
        held += 18 + pages_that_fit(found, EngineConfig(gpu_memory_utilization=share), PAGE) * PAGE / GIB
    assert held <= 140


def test_the_error_says_who_holds_the_memory() -> None:
    found = reading(80, outside=60, foreign=2, fixed=18)
    with pytest.raises(CapacityError, match=r"of 80\.0 GiB others use 62\.0 .* engine 18\.0 .*Raise it"):
        pages_that_fit(found, EngineConfig(), PAGE)
    with pytest.raises(CapacityError, match=r"gpu_memory_utilization=0\.2"):
        pages_that_fit(reading(80, fixed=18), EngineConfig(gpu_memory_utilization=0.2), PAGE)


def backend_of(name: str) -> AttentionBackend:
    problem = AttentionProblem(
        device=torch.device("cpu"), dtype=torch.float32, kv_dtype=torch.float32, num_heads=4, num_kv_heads=2,
        head_dim=8, page_size=16, batch_invariant=False,
    )  # fmt: skip
    return resolve_backend(name, problem)


@pytest.mark.parametrize("rows", [65, 300])
@pytest.mark.parametrize("attention", ["sdpa", "oracle"])
def test_the_peak_forward_runs_every_row_and_a_chunk_of_logits(rows: int, attention: str) -> None:
    model, ran = random_decoder(qwen3=True, seed=0), {"rows": 0, "logits": 0}
    config = EngineConfig(max_batch_rows=rows, max_num_seqs=7, logits_chunk_rows=90, page_size=16)
    backend = backend_of(attention)
    pool = KVPool(model.config, 1, 16, device=torch.device("cpu"), dtype=torch.float32)
    model.norm.register_forward_hook(lambda _m, _i, out: ran.update(rows=out.shape[0]))
    model.lm_head.register_forward_hook(lambda _m, _i, out: ran.update(logits=out.shape[0]))
    peak_forward(model, backend, config, 400, pool)
    assert ran == {"rows": rows, "logits": min(rows, 90)}


@pytest.mark.parametrize(("sequences", "reach"), [(1, 30), (7, 30), (2, 100)])
def test_the_peak_forward_stays_within_what_short_sequences_reach(sequences: int, reach: int) -> None:
    """On a device an index after a table's end fails every later operation of the process."""
    model, ran = random_decoder(qwen3=True, seed=0), list[int]()
    model.set_max_positions(reach)
    model.norm.register_forward_hook(lambda _m, _i, out: ran.append(out.shape[0]))
    config = EngineConfig(max_batch_rows=300, max_num_seqs=sequences, logits_chunk_rows=90, page_size=16)
    pool = KVPool(model.config, 1, 16, device=torch.device("cpu"), dtype=torch.float32)
    peak_forward(model, backend_of("sdpa"), config, reach, pool)
    assert ran == [300]


def test_what_is_configured_wins_and_the_rest_is_what_sequences_could_use() -> None:
    model = random_decoder(qwen3=True, seed=0)

    def pages(**settings: int) -> int:
        config = EngineConfig(page_size=16, max_num_seqs=3, **settings)
        return count_pages(
            model, backend_of("sdpa"), config, 100, 1 << 20, lambda _: pytest.fail("no forward is needed here")
        )

    assert pages(num_pages=5, kv_cache_bytes=99 << 20) == 5
    assert pages(kv_cache_bytes=99 << 20) == 99
    assert pages(kv_cache_bytes=1) == 1
    assert pages() == 3 * 7


@pytest.mark.parametrize(("free", "expected"), [(None, 512), (1 << 30, 512), (8 << 30, 2048), (1 << 50, 64 * 63)])
def test_on_a_cpu_the_pool_follows_the_sequences_and_a_share_of_the_free_memory(
    free: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "available_memory", lambda: free)
    config = EngineConfig(page_size=16, max_num_seqs=64)
    model = random_decoder(qwen3=True, seed=0)
    assert count_pages(model, backend_of("sdpa"), config, 1000, 1 << 20, lambda _: pytest.fail("none")) == expected


@pytest.mark.parametrize(("settings", "level"), [({}, "WARNING"), ({"num_pages": 100}, "INFO")])
def test_a_shortfall_is_said_in_one_line(
    settings: dict[str, int], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(page_size=16, max_num_seqs=32, **settings)  # type: ignore[arg-type]
    with caplog.at_level("INFO"):
        say_shortfall(config, 32 * 63, 1000, 1 << 20)
        assert not caplog.records
        say_shortfall(config, 12 * 63 + 5, 1000, 1 << 20)
    (record,) = caplog.records
    assert record.levelname == level
    assert "12 of max_num_seqs=32" in record.message
    assert "kv_cache_bytes" in record.message

"""Which attention backend an engine gets, and the error if one cannot run."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from testing.engine.attention import make_case
from wedlm_core.attention import AttentionProblem, DeviceRows, PackedRows, flash, resolve_backend
from wedlm_core.attention import backends as registry_module
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.problem import version_of
from wedlm_core.attention.sdpa import SdpaAttention
from wedlm_core.attention.selftest import _difference, _forwards, disagreement
from wedlm_core.errors import ConfigError
from wedlm_core.kv.pool import KVPool

FP8 = torch.float8_e4m3fn
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Triton runs
PROBLEM = AttentionProblem(
    device=torch.device("cpu"), dtype=torch.float32, kv_dtype=torch.float32, num_heads=4, num_kv_heads=2,
    head_dim=32, page_size=16, batch_invariant=False,
)  # fmt: skip


def test_auto_takes_the_first_that_works_and_says_why_others_do_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wide = replace(PROBLEM, head_dim=512)
    monkeypatch.setitem(registry_module._ORDER, "cpu", ("flash-attn", "triton", "oracle", "sdpa"))
    with caplog.at_level(logging.INFO, logger="wedlm_core"):
        assert resolve_backend("auto", wide).name == "oracle"
    assert "oracle on cpu" in caplog.text
    assert "triton, because head_dim 512 is above 256" in caplog.text
    monkeypatch.setitem(registry_module._ORDER, "cpu", ("triton", "sdpa"))
    with pytest.raises(ConfigError, match="sdpa, because this backend is not batch invariant"):
        resolve_backend("auto", replace(wide, batch_invariant=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8, FP8])
def test_auto_on_cpu_is_compiled(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    assert (
        resolve_backend("auto", replace(PROBLEM, batch_invariant=True, dtype=dtype, kv_dtype=kv_dtype)).name
        == "compiled"
    )


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        ("flash-attn", PROBLEM, "runs on CUDA devices"),
        ("compiled", replace(PROBLEM, device=torch.device("meta")), "runs on CPU only"),
        ("sdpa", replace(PROBLEM, batch_invariant=True), "not batch invariant"),
        ("triton", replace(PROBLEM, device=DEVICE, head_dim=512), "head_dim 512"),
        ("flashy", PROBLEM, "one of"),
    ],
)
def test_a_named_backend_that_cannot_run_says_why(name: str, problem: AttentionProblem, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_backend(name, problem)
    assert ("or set batch_invariant=False" in str(caught.value)) is (reason == "not batch invariant")


def test_what_does_not_fit_is_not_remedied_by_giving_up_batch_invariance() -> None:
    with pytest.raises(ConfigError, match=r'Use attention="auto"\.$'):
        resolve_backend("compiled", replace(PROBLEM, device=torch.device("meta"), batch_invariant=True))


class _Wrong:
    """The oracle with one fault."""

    name, batch_invariant, on_device = "wrong", False, False
    transposed_keys = False

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _Wrong:
        if self.fault == "raises":
            raise RuntimeError("no kernel image is available")
        if self.fault == "top-left mask":
            rows = replace(rows, cached_S=rows.cached_S * 0)
        if self.fault == "neighbour's pages":
            rows = replace(rows, pages_SP=rows.pages_SP.roll(1, 0))
        if self.fault == "sees one ahead":
            rows = replace(rows, cached_S=rows.cached_S + np.array([0, 1, 0]))
        self.oracle = OracleAttention().plan(rows, pool, num_heads)
        return self

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        out_THD = self.oracle.attend(layer, q_THD)
        return out_THD * torch.nan if self.fault == "NaN" else out_THD


@pytest.mark.parametrize("fault", ["raises", "top-left mask", "neighbour's pages", "sees one ahead", "NaN"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_the_self_test_finds_what_a_kernel_may_do_wrong(fault: str, page_size: int) -> None:
    assert disagreement(_Wrong(fault), replace(PROBLEM, page_size=page_size)) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [None, torch.bfloat16, FP8, torch.int8])
def test_plain_backends_pass_the_self_test(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    problem = replace(PROBLEM, dtype=dtype, kv_dtype=kv_dtype or dtype)
    assert disagreement(SdpaAttention(), problem) is None


def test_backends_read_the_values_of_an_8_bit_pool() -> None:
    case = make_case([(3, 40), (9, 0)], heads=4, kv_heads=2, head_dim=16, page_size=16, kv_dtype=FP8)
    exact = make_case([(3, 40), (9, 0)], heads=4, kv_heads=2, head_dim=16, page_size=16)
    expected = OracleAttention().plan(exact.rows, exact.pool, 4).attend(0, exact.q_THD)
    for backend in (OracleAttention(), SdpaAttention()):
        found = backend.plan(case.rows, case.pool, 4).attend(0, case.q_THD)
        error = (found - expected).abs().max()
        assert 0 < error < 0.1, backend.name  # three bits of mantissa: within 1/16 of each entry


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("kind", ["windows", "decoding", "prefill"])
def test_every_forward_of_the_self_test_tells_right_from_wrong(kind: str, page_size: int) -> None:
    """A device runs all of them, a CPU the first alone."""
    problem = replace(PROBLEM, page_size=page_size)
    counts, cached = (np.array(column) for column in _forwards(page_size)[kind])
    assert _difference(SdpaAttention(), problem, counts, cached) < 1e-4
    assert not _difference(_Wrong("neighbour's pages"), problem, counts, cached) < 1e-2


def test_a_version_is_its_leading_numbers() -> None:
    assert version_of("2.13.0+cu130") == (2, 13, 0)
    assert version_of("2.8.0.post2") == (2, 8, 0)
    assert version_of("2.11.0a0+git1234") >= (2, 11)


def test_flash_attention_is_given_keys_and_values_page_by_page() -> None:
    """Its own kernels need a GPU; the layout that they are given does not."""
    case = make_case([(3, 40), (9, 0)], heads=4, kv_heads=2, head_dim=16, page_size=16)
    pool, given = case.pool, list[Any]()

    def call(*parts: Any) -> Tensor:
        given.extend(parts)
        return case.q_THD

    flash._Plan(DeviceRows.of(case.rows, torch.device("cpu")), pool, call).attend(0, case.q_THD)
    _, q_THD, k_PSHD, v_PSHD = given
    assert q_THD is case.q_THD
    for entry in (0, 17, 40):
        flat = pool.flat_index(torch.tensor([entry]))
        assert torch.equal(k_PSHD[entry // 16, entry % 16], pool.keys(0, flat))
        assert torch.equal(v_PSHD[entry // 16, entry % 16], pool.values(0, flat))

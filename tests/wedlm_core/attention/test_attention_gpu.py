"""Attention backends on a GPU: all that run there equal the oracle, for any lengths and in CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from testing.engine.attention import Case, make_case
from wedlm_core.attention import AttentionBackend, AttentionProblem, DeviceRows, backend_names, resolve_backend
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.errors import ConfigError

pytestmark = pytest.mark.gpu  # kernels that only CUDA devices run

CUDA = torch.device("cuda")
BACKENDS = ("flash-attn", "triton", "sdpa")
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
LENGTHS = [(1, 700), (17, 250), (33, 0), (1, 0), (5, 4090), (120, 300)]
DTYPES = [
    (torch.bfloat16, None),
    (torch.float32, None),
    (torch.bfloat16, torch.float8_e4m3fn),
    (torch.float32, torch.bfloat16),
]


def problem_of(case: Case, *, batch_invariant: bool = False) -> AttentionProblem:
    pool = case.pool
    return AttentionProblem(
        device=CUDA, dtype=pool.compute_dtype, kv_dtype=pool.dtype, num_heads=case.heads, num_kv_heads=pool.heads,
        head_dim=pool.head_dim, page_size=pool.page_size, batch_invariant=batch_invariant,
    )  # fmt: skip


def backends(case: Case, *, batch_invariant: bool = False) -> list[AttentionBackend]:
    """The backends that can run with these packages, GPU, dtype and page size."""
    found = []
    for name in BACKENDS:
        try:
            found.append(resolve_backend(name, problem_of(case, batch_invariant=batch_invariant)))
        except ConfigError as error:
            print(error)
    return found


def case_of(
    lengths: list[tuple[int, int]], dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype | None = None,
    page_size: int = 256, head_dim: int = 128, seed: int = 0,
) -> Case:  # fmt: skip
    return make_case(
        lengths, heads=32 if head_dim == 128 else 4, kv_heads=8 if head_dim == 128 else 2, head_dim=head_dim,
        page_size=page_size, dtype=dtype, kv_dtype=kv_dtype, device="cuda", seed=seed,
    )  # fmt: skip


def oracle(case: Case) -> torch.Tensor:
    return OracleAttention().plan(case.rows, case.pool, case.heads).attend(0, case.q_THD)


def assert_equal(backend: AttentionBackend, found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{backend.name}: {text}"
    )


@pytest.mark.parametrize(("dtype", "kv_dtype"), DTYPES)
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("head_dim", [8, 32, 64, 128])
def test_backends_equal_the_oracle(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, page_size: int, head_dim: int
) -> None:
    case = case_of(LENGTHS, dtype, kv_dtype, page_size, head_dim)
    expected = oracle(case)
    names = []
    for backend in backends(case):
        found = backend.plan(case.rows, case.pool, case.heads).attend(0, case.q_THD)
        assert_equal(backend, found, expected)
        names.append(backend.name)
    assert {"triton", "sdpa"} <= set(names)


@pytest.mark.parametrize(("dtype", "kv_dtype"), DTYPES)
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("rows", [1, 4, 9, 17])
@pytest.mark.parametrize("sequences", [1, 40])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_decoding_by_the_kernels_equals_the_oracle(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, page_size: int, rows: int, sequences: int, head_dim: int
) -> None:
    """Tiles of few rows have launches of their own; a lone sequence's KV is split, that of many is not."""
    lengths = [(rows, (37 * s) % 300 + (900 if s == 0 else 0)) for s in range(sequences)]
    case = case_of(lengths, dtype, kv_dtype, page_size, head_dim)
    backend = resolve_backend("triton", problem_of(case))
    assert_equal(backend, backend.plan(case.rows, case.pool, case.heads).attend(0, case.q_THD), oracle(case))


def test_auto_finds_a_backend_for_every_dtype_and_page_size() -> None:
    for dtype, kv_dtype in DTYPES:
        for page_size in (16, 64, 256):
            case = case_of([(2, 3)], dtype, kv_dtype, page_size)
            assert resolve_backend("auto", problem_of(case)).name in backend_names()


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("page_size", [64, 256])
def test_a_graph_follows_its_inputs(kv_dtype: torch.dtype | None, page_size: int) -> None:
    lengths = [(17, 500), (3, 90), (1, 0), (9, 1000)]
    case = case_of(lengths, kv_dtype=kv_dtype, page_size=page_size)
    for backend in backends(case):
        if not backend.on_device:
            continue
        own = DeviceRows.of(case.rows, CUDA)
        total = 64
        # Two unused sequences, padding rows, bounds above all lengths.
        rows = replace(
            own,
            cu_rows_Z=torch.cat([own.cu_rows_Z, own.cu_rows_Z[-1:], own.cu_rows_Z[-1:]]),
            kv_lengths_S=torch.nn.functional.pad(own.kv_lengths_S, (0, 2)),
            pages_SP=torch.nn.functional.pad(own.pages_SP, (0, 3, 0, 2)).contiguous(),
            max_rows=32, max_kv=1024 + page_size, total=total,
        )  # fmt: skip
        q = torch.zeros(total, case.heads, case.pool.head_dim, dtype=torch.bfloat16, device=CUDA)
        q[: case.rows.total] = case.q_THD

        def forward(backend: AttentionBackend = backend, rows: DeviceRows = rows, q: torch.Tensor = q) -> torch.Tensor:
            return backend.plan_device(rows, case.pool, case.heads).attend(0, q)  # type: ignore[attr-defined]

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # rows and pages are written there
        with torch.cuda.stream(side):
            forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            out = forward()
        graph.replay()
        assert_equal(backend, out[: case.rows.total], oracle(case))
        # Other rows and other lengths in the same graph: the third sequence is gone, the first is shorter.
        other = replace(
            case.rows,
            counts_S=case.rows.counts_S[[0, 1, 3]] - [10, 0, 8],
            cached_S=case.rows.cached_S[[0, 1, 3]] - [400, 5, 999],
            starts_S=case.rows.starts_S[[0, 1, 1]] - [0, 10, 7],
            pages_SP=case.rows.pages_SP[[0, 1, 3]],
        )
        facts = DeviceRows.of(other, CUDA)
        rows.cu_rows_Z.fill_(facts.cu_rows_Z[-1])
        rows.cu_rows_Z[:4].copy_(facts.cu_rows_Z)
        rows.kv_lengths_S.zero_()
        rows.kv_lengths_S[:3].copy_(facts.kv_lengths_S)
        rows.pages_SP[:3, : facts.pages_SP.shape[1]].copy_(facts.pages_SP)
        graph.replay()
        expected = oracle(replace(case, rows=other, q_THD=q[: other.total]))
        assert_equal(backend, out[: other.total], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("page_size", [64, 256])
def test_invariant_backends_give_each_row_the_same_bits_in_any_forward(dtype: torch.dtype, page_size: int) -> None:
    case = case_of([(40, 900), (3, 77), (200, 1500)], dtype, page_size=page_size)
    candidates = backends(case, batch_invariant=True)
    assert "triton" in [backend.name for backend in candidates]
    for backend in candidates:
        whole = backend.plan(case.rows, case.pool, case.heads).attend(0, case.q_THD)
        for sequence, begin, end in ((0, 0, 40), (0, 7, 8), (2, 0, 100), (2, 100, 133), (2, 199, 200), (1, 1, 3)):
            start = int(case.rows.starts_S[sequence])
            cached = case.rows.cached_S[[sequence]] + begin
            rows = replace(
                case.rows, counts_S=case.rows.counts_S[[sequence]] * 0 + end - begin, cached_S=cached,
                starts_S=cached * 0, pages_SP=case.rows.pages_SP[[sequence]],
            )  # fmt: skip
            part = slice(start + begin, start + end)
            alone = backend.plan(rows, case.pool, case.heads).attend(0, case.q_THD[part].contiguous())
            assert torch.equal(alone, whole[part]), f"{backend.name}: rows {begin}-{end} of sequence {sequence}"


def test_nothing_in_a_plan_from_device_tensors_waits_for_the_device() -> None:
    case = case_of([(17, 500), (3, 90)])
    for backend in backends(case):
        if backend.on_device:
            rows = DeviceRows.of(case.rows, CUDA)
            forward = backend.plan_device  # type: ignore[attr-defined]
            forward(rows, case.pool, case.heads).attend(0, case.q_THD)  # compiled and warm
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = forward(rows, case.pool, case.heads).attend(0, case.q_THD)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert_equal(backend, found, oracle(case))

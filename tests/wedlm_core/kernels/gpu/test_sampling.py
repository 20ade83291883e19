"""The fused sampler against the oracle and the CPU's; on a machine without a GPU Triton's interpreter runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.noise_oracle import gumbel_noise
from testing.engine.random_bits import random_allowed
from testing.engine.random_tables import SLOTS, random_tables
from testing.engine.sampling_oracle import choose
from wedlm_core.decoding.adjustments import AdjustmentTables, adjustments_record
from wedlm_core.decoding.allowed_tokens import AllowedRows
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.decoding.sampling_gpu import choose_gpu, chooser
from wedlm_core.errors import ConfigError

triton = pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402

from wedlm_core.kernels.gpu.sampling import _gumbel, _hash, _row_key  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TILE = 32  # small, so that rows have several tiles


@triton.jit
def _noise_kernel(seed_ptr, position_ptr, noise_ptr, LIBM: tl.constexpr, VOCAB: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    token = tl.arange(0, VOCAB)
    key = _row_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
    tl.store(noise_ptr + row * VOCAB + token, _gumbel(_hash(key, token), LIBM))


@given(rows=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 200_000)), min_size=1, max_size=4))
@settings(max_examples=4, deadline=None)
def test_the_noise_is_the_packages(rows: list[tuple[int, int]]) -> None:
    seed, position = (torch.tensor(column, device=DEVICE) for column in zip(*rows, strict=True))
    noise = torch.empty(len(rows), 1024, device=DEVICE)
    _noise_kernel[(len(rows),)](seed, position, noise, LIBM=DEVICE.type == "cuda", VOCAB=1024)
    # The bits are the same; on a GPU so are the logarithms, in the interpreter they are another library's.
    exact = DEVICE.type == "cuda"
    torch.testing.assert_close(
        noise, gumbel_noise(seed, position, 1024), rtol=0 if exact else 1e-6, atol=0 if exact else 3e-7
    )


def sampling_rows(
    count: int, seed: int, *, suppressing: bool, filtering: bool = False, vocab: int | None = None,
    tables: AdjustmentTables | None = None, most: int = 0,
) -> SamplingRows:  # fmt: skip
    """Rows of every kind; with ``vocab``, some are restricted to the bits of a grammar; with ``most``, some report."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (count,), generator=generator)]

    row, temperature, slot = torch.arange(count), drawn(0.0, 0.3, 1.0, 2.5), drawn(*range(SLOTS))
    position = torch.randint(0, 40_000, (count,), generator=generator)
    if tables is not None:
        position = torch.minimum(tables.prompt_S[slot] + position % 30, torch.tensor(39))
    filters = {"min_p": drawn(0.0, 0.0, 0.05), "top_k": drawn(0, 0, 3, 20, 1000), "top_p": drawn(1.0, 0.8, 0.999, 1e-9)}
    return SamplingRows(
        temperature_R=temperature,
        seed_R=torch.randint(0, 2**62, (count,), generator=generator),
        position_R=position,
        suppress_R=(row % 2 == 0) & suppressing,
        sampled=bool((temperature > 0).any()),
        filters=filters if filtering else {},
        adjustments_N=None if tables is None else torch.from_numpy(adjustments_record(tables).view(np.int64)),
        slot_R=None if tables is None else slot,
        report_R=(row + seed) % 3 if most else None,
        most=most,
        allowed=None if vocab is None else random_allowed((row % 2 == 0) & suppressing, vocab, seed),
        suppressing=suppressing,
    )


def move(rows: SamplingRows, tables: AdjustmentTables | None = None) -> SamplingRows:
    """To the device; with tables there that are left alive by the caller."""
    tensors = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in vars(rows).items()}
    if rows.allowed is not None:
        tensors["allowed"] = AllowedRows(**{name: value.to(DEVICE) for name, value in vars(rows.allowed).items()})
    tensors["filters"] = {name: value.to(DEVICE) for name, value in rows.filters.items()}
    if tables is not None:
        tensors["adjustments_N"] = torch.from_numpy(adjustments_record(tables).view(np.int64)).to(DEVICE)
    return SamplingRows(**tensors)


def on_device(tables: AdjustmentTables) -> AdjustmentTables:
    moved = {
        name: {key: one.to(DEVICE) for key, one in value.items()} if isinstance(value, dict) else value.to(DEVICE)
        for name, value in vars(tables).items()
    }
    return AdjustmentTables(**moved)


def assert_chosen_alike(got: Choice, want: Choice, atol: float = 1e-5) -> None:
    assert torch.equal(got.token_R.cpu(), want.token_R)
    real_R = ~want.entropy_R.isnan()  # where adjustments leave nothing there is no distribution
    torch.testing.assert_close(got.entropy_R.cpu()[real_R], want.entropy_R[real_R], rtol=0, atol=atol)
    torch.testing.assert_close(got.logprob_R.cpu(), want.logprob_R, rtol=0, atol=atol)
    assert (got.tops is None) == (want.tops is None)
    if got.tops is not None and want.tops is not None:
        assert torch.equal(got.tops.token_RK.cpu(), want.tops.token_RK)
        torch.testing.assert_close(got.tops.logprob_RK.cpu(), want.tops.logprob_RK, rtol=0, atol=atol)


def numbers_of(choice: Choice) -> list[torch.Tensor]:
    tops = [] if choice.tops is None else [choice.tops.token_RK, choice.tops.logprob_RK]
    return [choice.token_R, choice.entropy_R, choice.logprob_R, *tops]


@given(
    count=st.integers(1, 5),
    vocab=st.integers(10, 150),
    seed=st.integers(0, 2**31),
    suppressing=st.booleans(),
    filtering=st.booleans(),
    adjusting=st.booleans(),
    restricting=st.booleans(),
    coarse=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 0.97]),
    sharpness=st.sampled_from([0.0, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    splits=st.integers(1, 5),
    most=st.sampled_from([0, 1, 5, 20]),
)
@settings(max_examples=4, deadline=None)
def test_it_chooses_as_the_oracle_whatever_the_split(
    count: int, vocab: int, seed: int, suppressing: bool, filtering: bool, adjusting: bool, restricting: bool,
    coarse: bool, dead: float, sharpness: float, dtype: torch.dtype, splits: int, most: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab, generator=generator) * sharpness
    if coarse:  # multiples of 2 tie often
        logits = (logits / 2).round() * 2
    logits[torch.rand(count, vocab, generator=generator) < dead] = -torch.inf
    logits[:, 0] = logits[:, 0].clamp_min(-9.0)  # a row with nothing to choose from has no right answer
    logits = logits.to(dtype)
    tables = random_tables(vocab, generator) if adjusting else None
    moved = None if tables is None else on_device(tables)
    host = sampling_rows(
        count, seed, suppressing=suppressing, filtering=filtering, vocab=vocab if restricting else None, tables=tables,
        most=most,
    )  # fmt: skip
    limits = {"mask_token_id": 1, "vocab_limit": vocab - 2}
    given_logits, rows = logits.to(DEVICE), move(host, moved)
    kept = given_logits.clone()
    got = choose_gpu(given_logits, rows, **limits, splits=splits, tile=TILE)
    assert torch.equal(given_logits, kept), "the logits are left alone"
    assert_chosen_alike(got, choose(logits, host, tables=tables, **limits))
    assert_chosen_alike(got, choose_cpu(logits.clone(), host, **limits))
    once = choose_gpu(given_logits, rows, **limits, splits=1, tile=TILE)
    assert all(map(torch.equal, numbers_of(once), numbers_of(got))), "the split changes no bit"
    i = seed % count  # and it knows nothing of the other rows
    alone = choose_gpu(given_logits[i : i + 1], rows.take(torch.tensor([i], device=DEVICE)), **limits, tile=TILE)
    assert all(torch.equal(mine[0], theirs[i]) for mine, theirs in zip(numbers_of(alone), numbers_of(got), strict=True))


def plain_rows(temperature: list[float], **fields: Any) -> SamplingRows:
    """Rows at these temperatures, of seeds and positions of their own."""
    count, heat_R = len(temperature), torch.tensor(temperature)
    own = {
        "seed_R": torch.arange(count), "position_R": torch.arange(count), "suppressing": False,
        "suppress_R": torch.zeros(count, dtype=torch.bool), "sampled": bool(heat_R.any()),
    }  # fmt: skip
    return SamplingRows(temperature_R=heat_R, **(own | fields))


def tokens_of_all(logits: torch.Tensor, rows: SamplingRows, tables: AdjustmentTables | None = None) -> list[int]:
    """The tokens that the kernels, the CPU's kernel and the oracle choose."""
    limits = {"mask_token_id": 1, "vocab_limit": logits.shape[1]}
    moved = None if tables is None else on_device(tables)
    got = choose_gpu(logits.to(DEVICE), move(rows, moved), **limits, splits=2, tile=TILE)
    assert_chosen_alike(got, choose(logits, rows, tables=tables, **limits))
    assert_chosen_alike(got, choose_cpu(logits.clone(), rows, **limits))
    return got.token_R.tolist()


def test_edges_are_found_among_more_tokens_than_a_tile_holds() -> None:
    """In each quarter of the range that is left, for counts and for shares of the probability; and of min-p."""
    logits = torch.randn(11, 256, generator=torch.Generator().manual_seed(2)).mul(0.5)
    off = [0] * 5
    filters = {
        "min_p": torch.tensor([*(0.0 for _ in range(10)), 0.9]),
        "top_k": torch.tensor([40, 90, 128, 190, 240, *off, 0]),
        "top_p": torch.tensor([*(1.0 for _ in off), 0.3, 0.5, 0.7, 0.9, 0.97, 1.0]),
    }
    hidden = {"suppress_R": torch.ones(11, dtype=torch.bool), "suppressing": True}  # entropies of the tokens that stay
    assert len(set(tokens_of_all(logits, plain_rows([4.0] * 11, filters=filters, **hidden)))) > 3


@pytest.mark.parametrize("filters", [{}, {"min_p": 0.5, "top_k": 120, "top_p": 0.99}], ids=["plain", "filtered"])
def test_of_equal_scores_the_first_is_chosen(filters: dict[str, float]) -> None:
    """Logits so large that noise is lost in their last bit, in tiles of two programs; and a greedy row."""
    logits = torch.full((3, 200), 1e9)
    logits[0, :37], logits[1, :70] = 0.0, -1e9
    given = {name: torch.tensor([value] * 3) for name, value in filters.items()}
    bits_UW = torch.tensor([[0, 0, 0x7FFFFF00, *[-1] * 4]]).to(torch.int32)
    allowed = AllowedRows(bits_UW=bits_UW, line_R=torch.tensor([-1, 0, 0]))
    assert tokens_of_all(logits, plain_rows([1.0, 1.0, 0.0], filters=given, allowed=allowed)) == [37, 72, 72]


def tables_of(prompt: int, **columns: Any) -> AdjustmentTables:
    """Those of :func:`random_tables` for one slot, with no adjustment but these."""
    tables = random_tables(100, torch.Generator().manual_seed(0))
    off = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "min_tokens": 0}
    for name, value in (off | columns).items():
        tables.columns[name][:] = value
    tables.prompt_S[:], tables.known_S[:] = prompt, 39
    return tables


def test_no_stop_token_is_chosen_below_min_tokens() -> None:
    tables = tables_of(4, min_tokens=3)
    tables.lists["stop_ids"][0] = torch.tensor([50, 60, -1])
    logits = torch.zeros(4, 100)
    logits[:, 60], logits[:, 80] = 9.0, 5.0
    record = torch.from_numpy(adjustments_record(tables).view(np.int64))
    rows = plain_rows(
        [0.0] * 4, position_R=torch.tensor([4, 6, 7, 8]), adjustments_N=record, slot_R=torch.zeros(4, dtype=torch.int64)
    )
    assert tokens_of_all(logits, rows, tables) == [80, 80, 60, 60], "the third token may not be one, the fourth may"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_the_choice_is_a_token_that_the_grammar_refuses(temperature: float) -> None:
    tables = tables_of(4)
    tables.lists["suppressed"][0] = torch.tensor([0, 1])
    record = torch.from_numpy(adjustments_record(tables).view(np.int64))
    # The grammar allows tokens 0 and 1 alone, 1 alone, and all but 64.
    bits_UW = torch.tensor([[3, 0, 0, 0], [-1, -1, -2, -1]]).to(torch.int32)
    rows = plain_rows(
        [temperature] * 3, adjustments_N=record, slot_R=torch.zeros(3, dtype=torch.int64),
        allowed=AllowedRows(bits_UW=bits_UW, line_R=torch.tensor([0, -3, 1])),
    )  # fmt: skip
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(3))
    first, second, third = tokens_of_all(logits, rows, tables)
    assert (first, second) == (2, 0)
    assert third not in (0, 1, 64)


def test_a_large_vocabulary_at_every_temperature() -> None:
    """Enough tokens and tiles that most tiles end before their logarithms, and that edges are looked for in steps."""
    vocab, generator = 151_936, torch.Generator().manual_seed(5)
    logits = torch.randn(4, vocab, generator=generator).mul(3)
    tables = random_tables(vocab, generator)
    rows = sampling_rows(4, 3, suppressing=True, filtering=True, tables=tables, most=20)
    limits = {"mask_token_id": 7, "vocab_limit": vocab - 11}
    assert set(rows.temperature_R.tolist()) >= {0.0, 1.0}
    got = choose_gpu(logits.to(DEVICE), move(rows, on_device(tables)), **limits, tile=8192)
    assert_chosen_alike(got, choose(logits, rows, tables=tables, **limits), atol=5e-5)


def test_no_rows_and_rows_that_are_not_contiguous() -> None:
    wide = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    limits = {"mask_token_id": 1, "vocab_limit": 40}
    rows = sampling_rows(6, 9, suppressing=False)
    assert_chosen_alike(choose_gpu(wide.to(DEVICE).t(), move(rows), **limits), choose(wide.t(), rows, **limits))
    none = move(rows.take(torch.zeros(0, dtype=torch.int64)))
    assert choose_gpu(wide.to(DEVICE).t()[:0], none, **limits).token_R.shape == (0,)


@pytest.mark.gpu
def test_a_graph_replays_it_and_nothing_waits() -> None:
    logits = torch.randn(257, 151_936, device="cuda", dtype=torch.bfloat16)
    rows, limits = move(sampling_rows(257, 2, suppressing=True, filtering=True, most=20)), {"mask_token_id": 7}
    choose_gpu(logits, rows, **limits, vocab_limit=151_669)  # compiles
    before, graph = torch.cuda.get_sync_debug_mode(), torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        choose_gpu(logits, rows, **limits, vocab_limit=151_669)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    with torch.cuda.graph(graph):
        choice = choose_gpu(logits, rows, **limits, vocab_limit=151_669)
    logits.copy_(torch.randn(257, 151_936, device="cuda"))
    graph.replay()
    want = choose_gpu(logits, rows, **limits, vocab_limit=151_669)
    assert all(map(torch.equal, numbers_of(choice), numbers_of(want)))


def test_which_form_serves_which_device() -> None:
    assert chooser(torch.device("cpu")) is choose_cpu
    if DEVICE.type == "cuda":
        assert chooser(DEVICE) is choose_gpu
    else:
        with pytest.raises(ConfigError, match=r"^device='cuda': a Triton kernel chooses tokens there, and [^\n]*$"):
            chooser(torch.device("cuda"))

"""Backend ``triton``: this package's paged attention for GPUs; any dtype, page size and head count, 8-bit KV too."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wedlm_core.attention.attention_protocol import DeviceRows, PackedRows
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kv.pool import KVPool

_TILE = 64  # query rows (times query heads per KV head) of most tiles, and of all tiles if batch invariant
_SMALL_TILE = 16  # of decoding: tensor cores have none smaller
_WINDOW = 64  # a forward with at most so many rows in a sequence counts as decoding, others as prefill
_MAX_SPLITS = 16
_SHORT = 1024  # KV entries of a sequence at most
_WAVES = 2  # programs per multiprocessor beyond which splitting the KV further gains nothing
_PLACES = 32  # tiles that place_tiles writes at once


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Facts of a device for launches: multiprocessors, their shared memory in bytes, major compute capability."""

    count: int
    shared: int
    major: int

    @classmethod
    def of(cls, device: torch.device) -> Processor | None:
        """None without CUDA, where kernels are interpreted."""
        if device.type != "cuda":
            return None
        found = torch.cuda.get_device_properties(device)
        return cls(count=found.multi_processor_count, shared=found.shared_memory_per_multiprocessor, major=found.major)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the kernels divide a forward.

    Attributes:
        block_q: rows of a tile, which has ``block_q`` times the group of query heads (a power of two) query rows.
        block_n: keys of a block.
        splits: ranges that each tile's KV is cut into.
        warps, stages: of a program, and of its software pipeline.
        skip_mask: whether blocks that a whole tile attends to have a loop of their own, without a mask. The second
            loop's loads start when the first has ended.
        least_rows, most_rows: rows of the sequences that the launch computes; programs of others end at once.
    """

    block_q: int
    block_n: int
    splits: int
    warps: int
    stages: int
    skip_mask: bool
    least_rows: int = 1
    most_rows: int = (1 << 31) - 1


class TritonPlan:
    """Tile sizes and grid of one forward; see :mod:`wedlm_core.kernels.gpu.attention_gpu`.

    The first layer's attention writes the records of the tiles (:meth:`places`), which the others read. So a plan is
    for one forward; where that is captured, make it within the capture.

    Args:
        splits: number of ranges each tile's KV is cut into; None: as many as keep the device busy.
        launch: all parameters of the kernels; None: :meth:`launches_of`.
    """

    def __init__(
        self,
        rows: DeviceRows,
        pool: KVPool,
        num_heads: int,
        *,
        batch_invariant: bool,
        splits: int | None = None,
        launch: Launch | None = None,
    ) -> None:
        self.rows, self.pool, self.heads, self.invariant = rows, pool, num_heads, batch_invariant
        self.group = num_heads // pool.heads
        self.sequences = rows.cu_rows_Z.shape[0] - 1
        self.launches = (launch,) if launch else self.launches_of(Processor.of(pool.k[0].device), splits)
        self._places: dict[tuple[int, Launch], Tensor] = {}  # by rows of the call, which is the same in all layers

    def launches_of(self, processor: Processor | None, splits: int | None = None) -> tuple[Launch, ...]:
        """One launch, or two where the tile of decoding, which most sequences want, would be that of a prompt's chunk.

        The host knows bounds alone, so the device tells the two kinds apart, by the rows of each sequence. Larger tiles
        serve both kinds at once: reading the keys of a decode row takes longer than computing 64.
        """
        usual, short = self.choose(processor, splits), _SMALL_TILE // _power(self.group)
        prompts = self.sequences > 1 and self.rows.max_rows > _WINDOW
        if splits is not None or not prompts or not self._has_room(processor) or usual.block_q > short:
            return (usual,)
        return replace(usual, splits=1, most_rows=short), replace(
            self.choose(processor, 1, _TILE), least_rows=short + 1
        )

    def choose(self, processor: Processor | None, splits: int | None = None, tile: int | None = None) -> Launch:
        """The parameters for a forward's shape, from bounds that the host knows.

        Decoding waits for memory: its tiles of 16 query rows are computed by few warps, in small blocks, so that many
        programs share a multiprocessor and many loads are under way. A tile of 16 query rows, or of a window's, masks
        all blocks in one loop, so that loads never pause; prefill waits for arithmetic. If batch invariant, nothing
        depends on the forward. The best were measured on an H200.
        """
        tile, large = tile or self._tile(processor), self._large()
        small = tile <= _SMALL_TILE and self._has_room(processor)
        block_n = 16 if large else 32 if small or self._wide() or self._narrow_blocks(tile, processor) else 64
        block_q = max(1, tile // _power(self.group))
        if splits is None:
            splits = self._useful_splits(block_q, processor)
        return Launch(
            block_q=block_q,
            block_n=block_n,
            splits=max(1, min(splits, -(-self.rows.max_kv // block_n))),
            warps=2 if small else 8 if tile >= 128 or large else 4,
            stages=self._stages(tile, block_n, processor, most=4 if small else 3),
            skip_mask=not self.invariant and tile > _SMALL_TILE and self.rows.max_rows > _WINDOW,
        )

    def _has_room(self, processor: Processor | None) -> bool:
        """Whether few warps hold a tile in their registers, and 64 keys beside 64 query rows; else tiles are others.

        Tensor cores read both operands from registers before compute capability 9.0.
        """
        dim = self.pool.head_dim
        plain = dim in (64, 128) and self.pool.page_size % 32 == 0
        hopper = processor is None or processor.major >= 9
        return plain and hopper and not self._wide() and not self.invariant

    def _wide(self) -> bool:
        return self.pool.compute_dtype == torch.float32

    def _large(self) -> bool:
        """Sums without tensor cores take more registers per row and key."""
        return self._wide() and self.pool.head_dim > 64

    def _tile(self, processor: Processor | None) -> int:
        """Query rows (times query heads per KV head) of a tile, a power of two."""
        group_p = _power(self.group)
        needed = max(_SMALL_TILE, _power(self._usual_rows() * group_p))
        if self.invariant:
            tile = _TILE
        elif self._has_room(processor):
            # For a window of 17 to 32 rows, with groups of 4 heads, two tiles of 64 would each read all keys.
            whole_window = needed == 2 * _TILE and self.rows.max_rows <= _WINDOW
            tile = needed if needed == _SMALL_TILE or whole_window else _TILE
        else:
            tile = min(128 if self.pool.page_size % 32 == 0 else _TILE, needed)  # others would spill registers
        if self._wide() or self.pool.head_dim > 128:
            tile = min(tile, 16 if self._large() else 32 if self._wide() else 64)
        return max(group_p, tile)

    def _usual_rows(self) -> int:
        """Rows of a sequence on average: bounds are rounded up, and one long sequence may be beside many short ones."""
        rows = self.rows
        return max(1, min(rows.max_rows, -(-rows.total // max(1, self.sequences))))

    def _useful_splits(self, block_q: int, processor: Processor | None) -> int:
        """Ranges that keep the device busy; joining two of short sequences takes longer than it saves."""
        if self.invariant or processor is None:
            return 1
        total = self.rows.total
        tiles = min(total, total // block_q + self.sequences)  # upper bound of tiles with rows
        splits = min(_MAX_SPLITS, _WAVES * processor.count // max(1, tiles * self.pool.heads))
        return 1 if splits == 2 and self.rows.max_kv <= _SHORT else splits

    @staticmethod
    def _narrow_blocks(tile: int, processor: Processor | None) -> bool:
        """Whether a block of 64 keys does not fit in the registers beside a tile of more than 16 rows.

        Tensor cores read both operands from registers before compute capability 9.0, and later if a tile has fewer
        than 64 rows.
        """
        return processor is not None and tile > 16 and (tile < 64 or processor.major < 9)

    def _stages(self, tile: int, block_n: int, processor: Processor | None, most: int) -> int:
        """Stages of the software pipeline: as many stored KV blocks as shared memory holds with the queries."""
        if processor is None:
            return 1
        memory = processor.shared - 1024  # a thread block may use all shared memory of its multiprocessor but 1 KiB
        dim = _power(self.pool.head_dim)
        queries, block = tile * dim * self.pool.compute_dtype.itemsize, 2 * block_n * dim * self.pool.dtype.itemsize
        return max(1, min(most, (memory - 2 * queries) // block))

    def places(self, total: int, launch: Launch) -> Tensor:
        """The record of each tile, int32 ``[tiles, 4]`` (:func:`place_tiles`), of ``total`` rows with padding."""
        from wedlm_core.kernels.gpu.attention_gpu import place_tiles

        if (total, launch) not in self._places:
            rows, block_q = self.rows, launch.block_q
            tiles = total // block_q + self.sequences + 1
            places_N4 = torch.empty(tiles, 4, dtype=torch.int32, device=rows.cu_rows_Z.device)
            place_tiles[(self.sequences + 1,)](
                rows.cu_rows_Z, rows.kv_lengths_S, places_N4, self.sequences, total, launch.least_rows,
                launch.most_rows, BLOCK_Q=block_q, CHUNK=_PLACES, num_warps=1,
            )  # fmt: skip
            self._places[total, launch] = places_N4
        return self._places[total, launch]

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """See :class:`wedlm_core.attention.AttentionPlan`; padding rows are zeros."""
        q_THD = q_THD if q_THD.stride(-1) == 1 else q_THD.contiguous()
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        for launch in self.launches:
            self._attend(layer, q_THD, out_THD, launch)
        return out_THD

    def _attend(self, layer: int, q_THD: Tensor, out_THD: Tensor, launch: Launch) -> None:
        from wedlm_core.kernels.gpu.attention_gpu import attend_tiles, join_splits
        from wedlm_core.kernels.gpu.dependent_launch import dependent

        rows, pool, heads = self.rows, self.pool, self.heads
        (total, _, dim), splits = q_THD.shape, launch.splits
        k, v = pool.held(layer)
        parts = tops = totals = out_THD  # unused without splits
        if splits > 1:
            parts = torch.empty(total, heads, splits, dim, dtype=torch.float32, device=q_THD.device)
            tops, totals = torch.empty(2, total, heads, splits, dtype=torch.float32, device=q_THD.device).unbind()
        shape = {"HEADS": heads, "DIM": dim, "DIM_P": max(16, _power(dim)), **dependent(q_THD.device)}
        places_N4 = self.places(total, launch)
        attend_tiles[(places_N4.shape[0], pool.heads, splits)](
            q_THD, k, v, out_THD, parts, tops, totals, places_N4, rows.pages_SP,
            dim**-0.5 * math.log2(math.e), splits, rows.pages_SP.stride(0), q_THD.stride(0),
            q_THD.stride(1), pool.num_entries, GROUP=self.group, GROUP_P=_power(self.group), PAGE=pool.page_size,
            BLOCK_Q=launch.block_q, BLOCK_N=launch.block_n, SPLIT=splits > 1, SKIP_MASK=launch.skip_mask,
            FP8=pool.quantised, num_warps=launch.warps, num_stages=launch.stages, **shape,
        )  # fmt: skip
        if splits > 1:
            join_splits[(total, heads)](
                parts, tops, totals, out_THD, splits, SPLITS_P=max(_MAX_SPLITS, _power(splits)),
                num_warps=1, **shape,
            )  # fmt: skip


class TritonAttention:
    """The Triton kernels as an attention backend.

    With ``batch_invariant``, a row's result does not depend on the rest of the forward, because:

    - tile size, block size, warps and masking are the same in every forward;
    - a row reads its KV in order from index 0, without splits;
    - a KV block that a row cannot see adds exactly nothing (weights of 0 and a factor of 1);
    - a row of a matrix product depends on that row alone, wherever it is in the tile. Tensor cores and the compiler
      behave so in practice; no manual guarantees it, so a test checks it.

    Without it, the tile size follows the number of rows, and the KV is split if there are few tiles.
    """

    name = "triton"
    on_device = True
    transposed_keys = False

    def __init__(self, *, batch_invariant: bool) -> None:
        self.batch_invariant = batch_invariant

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        if why := why_no_triton(problem.device):
            return why
        if problem.device.type == "cuda":
            capability = torch.cuda.get_device_capability(problem.device)
            if problem.kv_dtype == torch.float8_e4m3fn and capability < (8, 9):
                return f"8-bit floats need compute capability 8.9, this device has {capability[0]}.{capability[1]}"
            if problem.dtype == torch.bfloat16 and capability < (8, 0):
                return f"bfloat16 needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
        if problem.head_dim > 256:
            return f"head_dim {problem.head_dim} is above 256"
        return None

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> TritonPlan:
        """Copy the description of the rows to the device and prepare one forward."""
        return self.plan_device(DeviceRows.of(rows, pool.k[0].device), pool, num_heads)

    def plan_device(self, rows: DeviceRows, pool: KVPool, num_heads: int) -> TritonPlan:
        """Prepare one forward: host work only."""
        return TritonPlan(rows, pool, num_heads, batch_invariant=self.batch_invariant)

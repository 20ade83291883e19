"""Backend ``flash-attn``: the flash-attn package over paged KV; version 3 on Hopper if installed, else version 2.

Facts from the package's documentation and issues: the causal mask is aligned to the bottom right since 2.1; the
varlen function takes block tables since 2.5.7 (Dao-AILab/flash-attention#831); version 2 needs a page size that is a
multiple of 256 tokens, version 3 takes any (#1627); version 2 is wrong if varlen, pages and split KV are combined
(#1217).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention.attention_protocol import DeviceRows, PackedRows
from wedlm_core.attention.problem import AttentionProblem, version_of
from wedlm_core.kv.pool import KVPool

_MIN_VERSION = (2, 5, 7)


def _imported(name: str, function: str) -> ModuleType | str:
    """The imported module, or why it cannot be used. A package built for another torch may raise anything."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return f"the package {name} is not installed"
    except Exception as error:
        return f"importing {name} failed ({type(error).__name__}: {error})"
    return module if hasattr(module, function) else f"{name} has no {function}"


def _version3(problem: AttentionProblem) -> str | None:
    """Why version 3 cannot be used."""
    capability = torch.cuda.get_device_capability(problem.device)
    if capability[0] != 9:
        return f"version 3 is for compute capability 9.x, this device has {capability[0]}.{capability[1]}"
    if problem.batch_invariant:
        return "version 3 chooses its kernel by the longest sequence of the batch, which is not batch invariant"
    found = _imported("flash_attn_interface", "flash_attn_with_kvcache")
    return found if isinstance(found, str) else None


def _version2(problem: AttentionProblem) -> str | None:
    """Why version 2 cannot be used."""
    found = _imported("flash_attn", "flash_attn_varlen_func")
    if isinstance(found, str):
        return found
    if version_of(found.__version__) < _MIN_VERSION:
        return f"flash-attn {found.__version__} is installed, paged ragged rows need {'.'.join(map(str, _MIN_VERSION))}"
    if problem.page_size % 256:
        return f"version 2 needs a page_size of a multiple of 256, not {problem.page_size}"
    return None


class _Plan:
    def __init__(self, rows: DeviceRows, pool: KVPool, call: Callable[[DeviceRows, Tensor, Tensor, Tensor], Tensor]):
        self.rows, self.pool, self.call = rows, pool, call

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        return self.call(self.rows, q_THD, *self.pool.paged(layer))


class FlashAttention:
    """The flash-attn package. The padding rows of a result are undefined and may be NaN."""

    name = "flash-attn"
    on_device = True
    transposed_keys = False

    def __init__(self, problem: AttentionProblem) -> None:
        self._third = _version3(problem) is None
        # Version 2 never splits the KV in the varlen function and has one tile shape per head_dim.
        self.batch_invariant = not self._third

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        if why := problem.why_no_flash():
            return why
        third, second = _version3(problem), _version2(problem)
        return None if third is None or second is None else f"{second}; {third}"

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _Plan:
        """Copy the description of the rows to the device and prepare one forward."""
        return self.plan_device(DeviceRows.of(rows, pool.k[0].device), pool, num_heads)

    def plan_device(self, rows: DeviceRows, pool: KVPool, num_heads: int) -> _Plan:
        """Prepare one forward: host work and one small sum on the device."""
        if self._third:
            return _Plan(rows, pool, _attend3)
        cu_keys_Z = F.pad(rows.kv_lengths_S.cumsum(0, dtype=torch.int32), (1, 0))

        def attend2(rows: DeviceRows, q_THD: Tensor, k: Tensor, v: Tensor) -> Tensor:
            from flash_attn import flash_attn_varlen_func

            # With max_rows=1 the library takes a path that requires exactly one row per sequence. Padding breaks that,
            # so at least 2 is passed.
            return flash_attn_varlen_func(
                q_THD, k, v, rows.cu_rows_Z, cu_keys_Z, max(2, rows.max_rows), rows.max_kv,
                causal=True, block_table=rows.pages_SP,
            )  # fmt: skip

        return _Plan(rows, pool, attend2)


def _attend3(rows: DeviceRows, q_THD: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from flash_attn_interface import flash_attn_with_kvcache

    found = flash_attn_with_kvcache(
        q_THD, k, v, cache_seqlens=rows.kv_lengths_S, page_table=rows.pages_SP, cu_seqlens_q=rows.cu_rows_Z,
        max_seqlen_q=rows.max_rows, causal=True,
    )  # fmt: skip
    return found[0] if isinstance(found, tuple) else found

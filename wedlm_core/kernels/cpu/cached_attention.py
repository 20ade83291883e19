"""Keys and values of a forward: rows write theirs to the KV pool, and attend to the pool.

By the numbers of keys and values: float32, bfloat16 (as its bits) or int8.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at, floats_at, numbers_at
from wedlm_core.kernels.cpu.attention import GROUPS, QUERIES, Group, Pool, bits_of, space_size
from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.layer import place_heads
from wedlm_core.kernels.cpu.records import layer_at, task_at
from wedlm_core.kernels.cpu.team_kernels import LEAST_ROWS, STATE_SIZE, part_of, take

_HELD = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}
"""Number types of keys and values, and their types in kernels."""


def _placing(held: str) -> Any:
    """The kernel that writes keys and values; ``held``: their numbers."""
    kept = _HELD[held]

    @kernel(label=f"_{held}")
    def place(task_address, layer_address, me, members):  # type: ignore[no-untyped-def]
        """Queries to ``task.q``, keys and values to the pool: by rows, or by heads where rows are few.

        Args:
            task_address: of :data:`TASK`.
            layer_address: of :data:`LAYER`.
            me: number of the member that calls.
            members: of the team.
        """
        task, layer = task_at(task_address), layer_at(layer_address)
        rows, dim = task.rows, task.dim
        qkv = floats_at(task.qkv, rows, layer.qkv.outputs)
        q_norm = array_at(layer.q_norm, (dim if layer.q_norm else 0,), np.float32)
        k_norm = array_at(layer.k_norm, (dim if layer.k_norm else 0,), np.float32)
        cos, sin = floats_at(task.cos, task.reach, dim // 2), floats_at(task.sin, task.reach, dim // 2)
        positions, entries = numbers_at(task.positions, rows), numbers_at(task.entries, rows)
        q = floats_at(task.q, rows, task.heads * dim)
        keys = array_at(layer.keys, (task.kv_heads, task.blocks, dim, task.block), kept)
        values = array_at(layer.values, (task.kv_heads, task.kv_entries, dim), kept)
        key_scales = floats_at(layer.key_scales, task.kv_heads, task.kv_entries)
        value_scales = floats_at(layer.value_scales, task.kv_heads, task.kv_entries)
        first, last = 0, rows
        low, high = 0, task.kv_heads
        if rows >= LEAST_ROWS * members:
            first, last = part_of(rows, me, members)
        else:
            low, high = part_of(task.kv_heads, me, members)
        place_heads(
            qkv, q_norm, k_norm, task.eps, cos, sin, positions, entries, task.heads, q, keys, values, key_scales,
            value_scales, first, last, low, high,
        )  # fmt: skip

    return place


def _attending(held: str) -> Any:
    """The kernel of attention; ``held``: numbers of keys and values."""
    attend_group = GROUPS[held]

    @kernel(label=f"_{held}")
    def attend(task_address, layer_address, starts_at, counts_at, cached_at, space_at, members):  # type: ignore[no-untyped-def]
        """Attention of groups of queries, each taken by whoever is free; after a :func:`meet`.

        Args:
            task_address: of :data:`TASK`.
            layer_address: of :data:`LAYER`.
            starts_at: address, int64 ``[S]``: first row of each sequence.
            counts_at: the same, rows of each.
            cached_at: the same, tokens before them.
            space_at: address of the member's :func:`group_space`.
            members: of the team.
        """
        task, layer = task_at(task_address), layer_at(layer_address)
        starts, counts = numbers_at(starts_at, task.sequences), numbers_at(counts_at, task.sequences)
        cached = numbers_at(cached_at, task.sequences)
        space = array_at(space_at, (space_size(task.dim, task.width),), np.float32)
        state = numbers_at(task.state, STATE_SIZE)
        group, columns = task.heads // task.kv_heads, 8 * task.page_columns
        pool = Pool(
            layer.keys, layer.values, layer.key_scales, layer.value_scales, task.kv_entries, task.block,
            bits_of(task.page_size), task.dim, task.kv_heads, group, task.q, task.context, task.scale,
        )  # fmt: skip
        passed, mine = 0, take(state)
        for s in range(task.sequences):
            queries = counts[s] * group
            groups = (queries + QUERIES - 1) // QUERIES
            while mine < passed + groups * task.kv_heads:
                h, m = (mine - passed) // groups, (mine - passed) % groups * QUERIES
                # If all groups take as long, so many further on is the next that is free.
                later, after = (mine - passed + members) // groups, s
                if later >= task.kv_heads:
                    later, after = later % task.kv_heads, min(s + later // task.kv_heads, task.sequences - 1)
                one = Group(
                    task.pages + columns * s, starts[s], cached[s], m, min(QUERIES, queries - m), h,
                    task.pages + columns * after, cached[after] + 1, later,
                )  # fmt: skip
                attend_group(pool, one, space, task.width)
                mine = take(state)
            passed += groups * task.kv_heads

    return attend


PLACERS = {held: _placing(held) for held in _HELD}
"""The kernel that writes queries, keys and values: see ``place``."""
ATTENDERS = {held: _attending(held) for held in _HELD}
"""The kernel of attention: see ``attend``."""

"""Causal attention of packed rows over a paged KV pool: one protocol, several backends.

Knows the KV pool and the kernels. Knows nothing of models, sampling or requests.
"""

from wedlm_core.attention.attention_protocol import (
    AttentionBackend,
    AttentionPlan,
    DeviceAttentionBackend,
    DeviceRows,
    PackedRows,
    PagedAttend,
)
from wedlm_core.attention.backends import backend_names, invariant_by_default, resolve_backend, runs_on_cpu_only
from wedlm_core.attention.problem import AttentionProblem

__all__ = [
    "AttentionBackend",
    "AttentionPlan",
    "AttentionProblem",
    "DeviceAttentionBackend",
    "DeviceRows",
    "PackedRows",
    "PagedAttend",
    "backend_names",
    "invariant_by_default",
    "resolve_backend",
    "runs_on_cpu_only",
]

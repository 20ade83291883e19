"""The attention backends by name, and which of them ``"auto"`` takes. An engine resolves its backend once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from wedlm_core.attention.attention_protocol import AttentionBackend
from wedlm_core.attention.flash import FlashAttention
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.paged_cpu import PagedCpuAttention
from wedlm_core.attention.paged_gpu import TritonAttention
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.attention.sdpa import SdpaAttention
from wedlm_core.attention.selftest import disagreement
from wedlm_core.errors import ConfigError, explain

_NOT_INVARIANT = "this backend is not batch invariant"

logger = logging.getLogger(__name__)


def _anywhere(problem: AttentionProblem) -> None:
    """Plain torch runs anywhere: never a reason against it."""


class _Entry(NamedTuple):
    make: Callable[[AttentionProblem], AttentionBackend]
    why_not: Callable[[AttentionProblem], str | None]


_BACKENDS: dict[str, _Entry] = {
    "compiled": _Entry(lambda _: PagedCpuAttention(), PagedCpuAttention.why_not),
    "flash-attn": _Entry(FlashAttention, FlashAttention.why_not),
    "triton": _Entry(lambda p: TritonAttention(batch_invariant=p.batch_invariant), TritonAttention.why_not),
    "sdpa": _Entry(lambda _: SdpaAttention(), _anywhere),
    "oracle": _Entry(lambda _: OracleAttention(), _anywhere),
}
_ORDER = {"cpu": ("compiled",), "cuda": ("flash-attn", "triton", "sdpa")}
"""Those that "auto" tries, in order. On a GPU: a vendor's kernels, tuned for each generation; then this package's,
which support more (float32, 8-bit KV, small pages); then padded torch attention, which always works."""


def backend_names() -> list[str]:
    """Names that ``EngineConfig.attention`` takes besides ``"auto"``."""
    return sorted(_BACKENDS)


def runs_on_cpu_only(name: str) -> bool:
    """Whether a backend of this name runs on no GPU."""
    return name in _ORDER["cpu"]


def invariant_by_default(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """The meaning of ``EngineConfig.batch_invariant="auto"``: true for float32 on CPU, but for backends that cannot.

    Args:
        name: ``EngineConfig.attention``.
        device: of the model.
        dtype: of its weights.
    """
    return device.type == "cpu" and dtype == torch.float32 and (name == "auto" or runs_on_cpu_only(name))


def _tried(name: str, problem: AttentionProblem) -> AttentionBackend | str:
    """The backend, or why it cannot be used for this problem."""
    entry = _BACKENDS[name]
    if why := entry.why_not(problem):
        return why
    backend = entry.make(problem)
    if problem.batch_invariant and not backend.batch_invariant:
        return _NOT_INVARIANT
    if problem.device.type != "cpu" and (why := disagreement(backend, problem)):
        return why
    return backend


def resolve_backend(name: str, problem: AttentionProblem) -> AttentionBackend:
    """The backend for this problem. On a GPU it has passed a self-test against the oracle.

    ``"auto"`` takes the first backend that works; a missing package is never an error. The log names the choice and
    the reasons against the backends before it.

    Raises:
        ConfigError: the name is unknown, the backend cannot run here, or it is not batch invariant although
            ``problem.batch_invariant`` is set.
    """
    if name != "auto":
        if name not in _BACKENDS:
            raise ConfigError(explain("attention", name, f'one of {backend_names()} or "auto"', 'Use "auto".'))
        found = _tried(name, problem)
        if isinstance(found, str):
            raise ConfigError(explain("attention", name, found, _remedy(found)))
        return found
    passed: list[str] = []
    for candidate in _ORDER.get(problem.device.type, ("sdpa",)):
        found = _tried(candidate, problem)
        if not isinstance(found, str):
            over = f"; passed over: {'; '.join(passed)}" if passed else ""
            logger.info("attention backend: %s on %s%s", candidate, problem.device, over)
            return found
        passed.append(f"{candidate}, because {found}")
    why = "; ".join(passed)
    raise ConfigError(explain("attention", name, f"no backend fits ({why})", _remedy(why)))


def _remedy(why: str) -> str:
    return 'Use attention="auto"' + (", or set batch_invariant=False." if _NOT_INVARIANT in why else ".")

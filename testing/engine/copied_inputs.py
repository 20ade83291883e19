"""The buffers of captured forwards, filled part by part: also where no Triton kernel runs."""

from __future__ import annotations

from wedlm_core.engine.forward.cuda_graphs import StaticInputs
from wedlm_core.engine.forward.graph_policy import GraphKey
from wedlm_core.engine.forward.pack_gpu import DeviceBatch


class CopiedInputs(StaticInputs):
    """The readable form of the kernel :mod:`wedlm_core.kernels.gpu.static_inputs`."""

    def fill(self, key: GraphKey, batch: DeviceBatch) -> None:
        size, rows = key.size, batch.rows
        sequences = rows.kv_lengths_S.shape[0]
        self._id_T[:size].copy_(batch.id_T)
        self._position_T[:size].copy_(batch.position_T)
        self._slot_T[:size].copy_(batch.kv_entry_T)
        self._cu_rows_Z[: sequences + 1].copy_(rows.cu_rows_Z)
        self._cu_rows_Z[sequences + 1 :].copy_(rows.cu_rows_Z[-1:].expand(self._sequences - sequences))
        self._kv_lengths_S[:sequences].copy_(rows.kv_lengths_S)
        self._kv_lengths_S[sequences:].zero_()
        self._page_table(key)[:sequences, : rows.pages_SP.shape[1]].copy_(rows.pages_SP)

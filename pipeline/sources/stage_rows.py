"""The rows of an earlier stage of a chain, as the source of the next one: those that succeeded, unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sinks.stored_rows import PlaceReader
from pipeline.sources.identity import RESTORE_INPUT
from pipeline.storage.damage import FoundDamageError, StageDamageError
from pipeline.storage.protocol import Storage
from pipeline.types import SourceFile, Unit

STAGE_ID = "__wedlm_id"
"""Column of row ids: those of the stage before, with the number of the sample where it gave several."""

KeepRows = Callable[[pa.Table], pa.ChunkedArray]
"""Says of each row whether it is kept; null is no. Picklable."""

_FAILED = "error"
_READABLE = ("row_id", "sample_index", "text", "token_ids", "finish_reason", "seed")
"""Result columns that a later stage may read: another run gives the same values."""
_CARRIED = ("row_id", "sample_index", "text", "finish_reason")


def carried_columns(schema: pa.Schema, inputs: int, prefix: str, extra: Sequence[str] = ()) -> list[str]:
    """The columns of a stage's output that the next one passes on by default.

    ``inputs``: number of its columns that are the stage's own input's; ``extra``: result columns of this stage's
    own.
    """
    return [*schema.names[:inputs], *(prefix + name for name in _CARRIED), *extra]


class StageRows:
    """A source over the output of a stage. It is not cut into slices.

    Units of the next stage are made of units of this one, each with the place of its rows
    (:attr:`pipeline.types.Unit.place`).

    Attributes:
        files: those of the chain's input.
        schema: the columns that a later stage may read, and :data:`STAGE_ID`.

    Args:
        storage, rows: the stage's output, and the schema of its rows.
        inputs, prefix: number of its columns that are its input's, and prefix of the others.
        files: those of the chain's input.
        extra: result columns that this stage has of its own.
        several: whether a row may have several samples.
        keep: says of each row whether it is read; None reads all that succeeded.
    """

    def __init__(
        self, storage: Storage, rows: pa.Schema, inputs: int, prefix: str, files: tuple[SourceFile, ...],
        *, extra: Sequence[str] = (), several: bool = False, keep: KeepRows | None = None,
    ) -> None:  # fmt: skip
        self.files, self._keep = files, keep
        self._storage, self._rows, self._inputs, self._prefix = storage, rows, inputs, prefix
        self._several = several
        results = [prefix + name for name in _READABLE if prefix + name in rows.names]
        names = [*rows.names[:inputs], *results, *extra]
        fields = [rows.field(name) for name in names]
        self.schema = pa.schema([*fields, pa.field(STAGE_ID, pa.string())], metadata=rows.metadata)

    input_format = "rows"

    @property
    def remedy(self) -> str:
        """The remedy for rows that differ from those that were read."""
        return RESTORE_INPUT

    def rows_of(self, unit: Unit) -> pa.Table:
        """The input rows of a unit of the next stage: the rows of a unit of this one that succeeded, in order.

        Raises:
            StageDamageError: they differ from the committed ones.
        """
        assert unit.place is not None, "units of a later stage have a place"
        reader = PlaceReader(self._storage, self._rows, self._inputs, self._prefix)
        try:
            table = pa.concat_tables([self._rows.empty_table(), *reader.read(unit.place)])
        except FoundDamageError as error:
            raise StageDamageError(error.damages, self._storage.url) from error
        table = table.filter(pc.not_equal(table[f"{self._prefix}finish_reason"], _FAILED))
        ids = table[f"{self._prefix}row_id"]
        if self._several:
            ids = pc.binary_join_element_wise(ids, table[f"{self._prefix}sample_index"].cast(pa.string()), "#")
        names = self.schema.names[:-1]
        rows = pa.table([*(table[name] for name in names), ids], schema=self.schema)
        return rows if self._keep is None else rows.filter(self._keep(rows))

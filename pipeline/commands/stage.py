"""``stage``: generation as a lazy step of somebody else's Ray Data pipeline. Keeps no ledger and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from pipeline.cluster.batch_stage import generate_batches
from pipeline.codec import explain
from pipeline.commands.run_checks import check_secrets
from pipeline.commands.run_fields import RunFields
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts.model_files import check_model
from pipeline.prompts.structures import check_structure

if TYPE_CHECKING:
    from pipeline.cluster.ray_dataset import Dataset

_NOT_HERE = {
    "input": "the dataset is the input",
    "output": "the dataset that it gives is the output",
    "mode": "nothing is kept to continue from",
    "limit": "use dataset.limit(n)",
    "pools": "a stage has one pool",
    "retry_failed": "nothing is kept to retry; rows that failed have an error",
    "repair": "nothing is kept to repair",
    "max_failed_fraction": "rows that failed have an error; count them after the stage",
    "unit_rows": "give batch_rows",
    "units_in_flight": "give batches_in_flight",
    "output_format": "write the dataset in any format",
}
"""Settings of a run that mean nothing here, and why."""
_ROWS, _BATCHES = 32, 8


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step of a Ray Data pipeline: ``stage(dataset)`` is a dataset with the result columns.

    Attributes:
        config: settings; ``input`` and ``output`` are not used.
        batch_rows: rows that an actor is given at once.
        batches_in_flight: batches that an actor answers at once.
    """

    config: RunConfig
    batch_rows: int
    batches_in_flight: int

    def __call__(self, dataset: Dataset) -> Dataset:
        """``dataset`` with the result columns. Nothing runs until it is consumed.

        Raises:
            SourceError, ConfigError: the dataset's columns are known, and the prompts' is not among them, or one has
                the name of a result column. Where they are not known yet, consuming the dataset raises it.
            ResourceError: the cluster has no room for the actors.
        """
        return generate_batches(dataset, self.config, rows=self.batch_rows, batches=self.batches_in_flight)


def stage(*, batch_rows: int = _ROWS, batches_in_flight: int = _BATCHES, **fields: Unpack[RunFields]) -> Stage:
    """Generation as a lazy stage between the transforms of a Ray Data pipeline.

    ``dataset = pipeline.stage(model="tiny", prompt_column="question")(dataset)``: each row keeps its columns and gets
    those of a run's output; ``n=4`` gives four rows for one. A row that fails stays, with its ``error``. There is no
    ledger: Ray Data repeats lost tasks, rows of tasks that it drops are lost, and rows come in its order.

    A row's noise follows from its id: the value of ``id_column``, else a hash of its prompt's tokens and parameters. So
    it does not depend on batches, blocks or their order; and rows of one prompt get one text, unless they have ids.

    Args:
        batch_rows: rows that an actor is given at once.
        batches_in_flight: batches that an actor answers at once; their rows share its forwards.
        **fields: of :class:`~pipeline.config.RunConfig`: model, sampling, engine, actors, prompt_template, ...

    Raises:
        ConfigError: an unknown or bad field, or one that means nothing without an output.
        WeightsError: there is no such model.
    """
    for name, value in fields.items():
        if name in _NOT_HERE:
            raise ConfigError(explain(name, value, f"not for a stage: {_NOT_HERE[name]}", "Leave it out."))
    for name, value in (("batch_rows", batch_rows), ("batches_in_flight", batches_in_flight)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(explain(name, value, "an integer of 1 or more", "Give a count."))
    given: Mapping[str, Any] = {**fields, "input": None, "output": "."}
    config = RunConfig.from_mapping(given)
    check_secrets(config)
    check_model(config)
    check_structure(config)
    return Stage(config=config, batch_rows=batch_rows, batches_in_flight=batches_in_flight)

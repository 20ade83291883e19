"""Every sampling parameter reaches the pipeline: its column, the hash of parameters and the run's fingerprint."""

from __future__ import annotations

from copy import copy
from dataclasses import fields

import pytest

from pipeline.codec import SamplingParams, params_hash, params_of_row
from pipeline.config import RunConfig
from wedlm_core.errors import RequestError

NAMES = [f.name for f in fields(SamplingParams)]


def changed(name: str) -> SamplingParams:
    """Parameters of which one is another, whatever its type is."""
    params = copy(SamplingParams())
    object.__setattr__(params, name, "another")
    return params


@pytest.mark.parametrize("name", NAMES)
def test_another_parameter_is_another_hash_and_another_run(name: str) -> None:
    # The seed has a column of its own.
    assert (params_hash(changed(name)) == params_hash(SamplingParams())) == (name == "seed")
    ours, plain = RunConfig(input="x", output="y", sampling=changed(name)), RunConfig(input="x", output="y")
    assert ours.fingerprint_fields() != plain.fingerprint_fields()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_may_have_a_column(name: str) -> None:
    assert RunConfig(input="x", output="y", sampling_columns={name: "c"}).sampling_columns == {name: "c"}
    assert params_of_row(SamplingParams(), {name: None}) == SamplingParams()
    with pytest.raises(RequestError, match=name):
        params_of_row(SamplingParams(), {name: object()})


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "seed", "n", "window_size"])
def test_whole_floats_are_integers_where_the_parameter_takes_integers(name: str) -> None:
    found = getattr(params_of_row(SamplingParams(), {name: 4.0}), name)
    assert (found, type(found)) == (4, int)
    with pytest.raises(RequestError, match=name):
        params_of_row(SamplingParams(), {name: 4.5})


@pytest.mark.parametrize("name", ["temperature", "entropy_threshold", "position_penalty"])
def test_whole_floats_stay_floats_elsewhere(name: str) -> None:
    assert type(getattr(params_of_row(SamplingParams(), {name: 1.0}), name)) is float

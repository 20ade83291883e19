"""Outcomes of several groups keep their kinds when they are joined, and travel to the host bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wedlm_core.decoding.strategies import Commit
from wedlm_core.engine.forward.outcome import join, outcome_of, take, words_of
from wedlm_core.errors import IntegrityError
from wedlm_core.statistics import OUTCOME_KINDS, StepOutcome


def outcome(rows: int, places: int, first: int = 0) -> StepOutcome:
    """Every value differs from its neighbours, flags alternate."""
    integers = {name: np.arange(first, first + rows) for name in OUTCOME_KINDS if name.endswith("_D")}
    flags = np.arange(rows) % 2 == 0
    values = np.arange(first, first + rows * places).reshape(rows, places)
    return StepOutcome(
        **{**integers, "valid_D": flags, "next_valid_D": ~flags},
        token_DC=values,
        entropy_DC=values.astype(np.float32) / 7,
        logprob_DC=-values.astype(np.float32) / 3,
        early_DC=values % 2 == 0,
    )


@pytest.mark.parametrize("shapes", [[], [(2, 3)], [(1, 2), (3, 5)], [(2, 5), (1, 2), (4, 3)], [(0, 3), (2, 2)]])
def test_an_outcome_of_any_number_of_groups_has_the_kinds_of_one(shapes: list[tuple[int, int]]) -> None:
    parts = [outcome(rows, places, 10 * i) for i, (rows, places) in enumerate(shapes)]
    whole = join(parts)
    widest = max((places for _, places in shapes), default=1)
    for name, kind in OUTCOME_KINDS.items():
        found = getattr(whole, name)
        assert found.dtype == kind, name
        assert found.shape[0] == sum(rows for rows, _ in shapes)
        row = 0
        for part in parts:
            own = getattr(part, name)
            mine = found[row : row + len(own)]
            row += len(own)
            if own.ndim == 2:
                assert found.shape[1] == widest
                assert not mine[:, own.shape[1] :].any(), "columns missing in a group are zero"
                mine = mine[:, : own.shape[1]]
            np.testing.assert_array_equal(mine, own)
    keep = np.arange(len(whole.count_D)) % 2 == 0
    assert all(getattr(take(whole, keep), name).dtype == kind for name, kind in OUTCOME_KINDS.items())


@pytest.mark.parametrize("name", OUTCOME_KINDS)
def test_an_outcome_of_the_wrong_kind_cannot_be_made(name: str) -> None:
    right = {name: getattr(outcome(2, 3), name) for name in OUTCOME_KINDS}
    wrong = np.float64 if right[name].dtype != np.float64 else np.int64
    with pytest.raises(IntegrityError, match=f"{name} .* is float64 and has to be {OUTCOME_KINDS[name]}"):
        StepOutcome(**{**right, name: right[name].astype(wrong)})


def commit(rows: int, places: int, floats: torch.dtype) -> Commit:
    counts, flags = torch.arange(rows), torch.arange(rows) % 2 == 0
    values = torch.arange(rows * places).view(rows, places)
    nothing = torch.full((rows, places), torch.nan)
    return Commit(
        token_SC=values, entropy_SC=(values / 7).to(floats), logprob_SC=nothing.to(floats),
        early_SC=values % 2 == 0, count_S=counts, drafts_S=counts + 1, agreed_S=counts + 2, offered_S=counts + 3,
        valid_S=flags, next_valid_S=~flags, context_S=counts + 4, fill_SL=values > 3,
    )  # fmt: skip


def test_the_words_of_a_commit_bring_it_to_the_host_bit_for_bit() -> None:
    one = commit(3, 4, torch.float32)
    found = outcome_of(words_of(one, torch.arange(3) + 9).numpy())
    np.testing.assert_array_equal(found.token_DC, one.token_SC.numpy())
    np.testing.assert_array_equal(found.entropy_DC, one.entropy_SC.numpy())
    assert np.isnan(found.logprob_DC).all()
    np.testing.assert_array_equal(found.valid_D, one.valid_S.numpy())
    np.testing.assert_array_equal(found.next_rows_D, [9, 10, 11])
    with pytest.raises(IntegrityError, match="float64"):
        words_of(commit(3, 4, torch.float64), torch.arange(3))

"""Expected lengths: within a row's limits, the mean of its kind, and the same in all processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import SamplingParams
from pipeline.worker.lengths import _MOST_KINDS, Kind, Lengths, kind_of, longest_kinds

_KINDS = st.builds(
    lambda opening, length, most, exact: kind_of(opening, length, SamplingParams(max_tokens=most, ignore_eos=exact)),
    st.lists(st.integers(0, 2), max_size=3), st.integers(1, 900), st.integers(0, 300), st.booleans(),
)  # fmt: skip
_DONE = st.lists(st.tuples(_KINDS, st.integers(0, 300)), max_size=30)


@given(done=_DONE, kind=_KINDS)
def test_an_expected_length_is_within_the_limits_of_its_row_and_an_exact_one_is_known(
    done: list[tuple[Kind, int]], kind: Kind
) -> None:
    lengths = Lengths()
    assert lengths.expected(kind) == kind.most, "of a kind that is not known, the most"
    for own, tokens in done:
        lengths.learn(own, tokens)
    assert kind.least <= lengths.expected(kind) <= kind.most


@pytest.mark.parametrize("pair", [
    ({"max_tokens": 1000}, {"max_tokens": 100}),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {}),
])  # fmt: skip
def test_rows_of_another_limit_or_form_are_of_another_kind(pair: tuple[dict[str, object], dict[str, object]]) -> None:
    one, other = (kind_of((1, 2), 2, SamplingParams(**own)) for own in pair)  # type: ignore[arg-type]
    assert not set(one.names) & set(other.names)


def test_it_learns_the_length_by_template_and_by_length_of_the_prompt() -> None:
    lengths, params = Lengths(), SamplingParams(max_tokens=1000)
    for _ in range(50):
        lengths.learn(kind_of((1, 1), 10, params), 20)
        lengths.learn(kind_of((2, 2), 10, params), 600)
        lengths.learn(kind_of((3, 3), 900, params), 300)
    expected = [lengths.expected(kind_of(*own, params)) for own in (((1, 1), 10), ((2, 2), 10), ((9, 9), 900))]
    assert expected == pytest.approx([20, 600, 300], abs=25)
    assert lengths.size([kind_of((1, 1), 10, params), kind_of((2, 2), 10, params)]) == 10


@given(first=_DONE, second=_DONE, kind=_KINDS)
def test_another_process_that_is_given_the_news_expects_the_same(
    first: list[tuple[Kind, int]], second: list[tuple[Kind, int]], kind: Kind
) -> None:
    here, there = Lengths(), Lengths()
    for done in (first, second):
        for own, tokens in done:
            here.learn(own, tokens)
        there.add(here.take_news())
    assert here.expected(kind) == there.expected(kind)
    assert not here.take_news()


def test_an_order_is_renewed_each_time_that_twice_the_rows_are_known() -> None:
    lengths, kind = Lengths(), kind_of((1,), 1, SamplingParams())
    renewed = []
    for number in range(1, 20):
        lengths.learn(kind, 3)
        renewed += [number] * lengths.order_is_due()
    assert renewed == [1, 2, 4, 8, 16]


def test_prompts_without_a_template_cost_bounded_memory() -> None:
    lengths = Lengths()
    for number in range(_MOST_KINDS + 10):
        lengths.learn(kind_of((number,), 1, SamplingParams()), 7)
    assert len(lengths.take_news()) == _MOST_KINDS
    assert lengths.expected(kind_of((0,), 1, SamplingParams())) == pytest.approx(7, rel=0.1)


@given(kinds=st.lists(_KINDS, max_size=20), most=st.integers(1, 5))
def test_of_the_kinds_of_a_unit_those_with_the_largest_limits_are_kept(kinds: list[Kind], most: int) -> None:
    kept = longest_kinds(kinds, most)
    assert len(kept) == min(most, len({kind.names for kind in kinds}))
    assert max((kind.most for kind in kept), default=0) == max((kind.most for kind in kinds), default=0)


def test_a_kind_has_the_same_names_in_every_process() -> None:
    code = (
        "from pipeline.codec import SamplingParams; from pipeline.worker.lengths import kind_of; "
        "print(kind_of((3, 4), 9, SamplingParams(structured_outputs={'choice': ['a', 'b']}, max_tokens=50)))"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1

"""Which tokens count as compared, and as different, in the count of near-ties."""

from __future__ import annotations

from benchmarks.gpu.tiny import Difference, compare


def test_equal_outputs_have_no_difference_and_all_their_tokens_are_compared() -> None:
    same = [(1, 2, 3), (4,)]
    assert compare(same, same) == Difference(tokens=4, differ=0, sequences=2)


def test_only_the_first_difference_of_a_sequence_counts_and_nothing_behind_it() -> None:
    assert compare([(1, 2, 3, 4)], [(1, 9, 9, 9)]) == Difference(tokens=2, differ=1, sequences=1)


def test_an_output_that_ends_early_is_different() -> None:
    assert compare([(1, 2, 3)], [(1, 2)]) == Difference(tokens=3, differ=1, sequences=1)
    assert compare([(1, 2)], [(1, 2, 3)]) == Difference(tokens=3, differ=1, sequences=1)

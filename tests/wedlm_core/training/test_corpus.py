"""The procedural corpus: checkers, splits and the documented ranges of prompts."""

import itertools
import random
import re

import pytest

from wedlm_core.errors import ConfigError
from wedlm_core.training import corpus
from wedlm_core.training.corpus.low import MAX_COUNT_ITEMS, MAX_COUNT_START


def test_at_least_fourteen_families_over_three_regimes():
    assert len(corpus.FAMILIES) >= 14
    assert {family.regime for family in corpus.FAMILIES.values()} == {"low", "medium", "high"}


@pytest.mark.parametrize("name", sorted(corpus.FAMILIES))
def test_a_family_accepts_its_own_answers_and_no_damaged_ones(name):
    rng = random.Random(1)
    for problem in corpus.distinct(name, "train", 40):
        assert corpus.check(problem, "\n" + problem.answer + " ")
        for damaged in (problem.answer[:-1], problem.answer + " x", "", "7" + problem.answer):
            assert not corpus.check(problem, damaged)
        at = rng.randrange(len(problem.answer))
        assert not corpus.check(problem, problem.answer[:at] + "#" + problem.answer[at + 1 :])


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", sorted(corpus.FAMILIES))
def test_splits_are_disjoint_and_the_test_split_is_large_enough(name):
    test = {p.prompt for p in corpus.distinct(name, "test", 40)}
    weights = {name: 1.0}
    trained = {p.prompt for p in itertools.islice(corpus.stream(0, "train", weights), 1500)}
    chosen_by = {p.prompt for p in corpus.distinct(name, "validation", 25)}
    assert len(test) == 40
    assert not test & trained
    assert not test & chosen_by
    assert not chosen_by & trained


def test_open_answers_of_another_prompt_are_refused():
    fox = next(p for p in corpus.distinct("stories", "train", 400) if "a fox" in p.prompt)
    bear = next(p for p in corpus.distinct("stories", "train", 400) if "a bear" in p.prompt)
    assert not corpus.check(fox, bear.answer)


def test_lists_with_a_repeated_item_are_refused():
    problem = corpus.distinct("lists", "train", 1)[0]
    lines = problem.answer.split("\n")
    lines[1] = "2." + lines[0][2:]
    assert not corpus.check(problem, "\n".join(lines))


def test_worked_arithmetic_is_right():
    for name in ("addition", "subtraction", "equations", "word_problems"):
        for problem in corpus.distinct(name, "train", 100):
            for left, operator, right, result in re.findall(r"^(\d+) ([+-]) (\d+) = (\d+)$", problem.answer, re.M):
                assert eval(f"{left} {operator} {right}") == int(result)
            result = int(problem.answer.rsplit("Answer: ", 1)[1])
            numbers = [int(n) for n in re.findall(r"\d+", problem.prompt)]
            if name == "equations":
                assert numbers[0] * result + numbers[1] == numbers[2]
            else:
                assert result in (numbers[0] + numbers[1], numbers[0] - numbers[1])


def test_counting_and_equations_cover_their_documented_ranges():
    counts = [re.findall(r"\d+", p.prompt) for p in corpus.distinct("counting", "train", 1500)]
    sizes = [int(b) - int(a) + 1 for a, b in counts]
    assert (min(sizes), max(sizes)) == (2, MAX_COUNT_ITEMS)
    assert max(int(a) for a, _ in counts) == MAX_COUNT_START
    equations = [list(map(int, re.findall(r"\d+", p.prompt))) for p in corpus.distinct("equations", "train", 800)]
    assert {a for a, _, _ in equations} == set(range(2, 10))
    assert {b for _, b, _ in equations} == set(range(1, 31))
    assert {(c - b) // a for a, b, c in equations} == set(range(1, 13))


def test_the_stream_repeats_for_a_seed_and_unknown_families_are_refused():
    weights = dict.fromkeys(corpus.FAMILIES, 1.0)
    first, again, other = (
        [p.prompt for p in itertools.islice(corpus.stream(seed, "train", weights), 50)] for seed in (3, 3, 4)
    )
    assert first == again != other
    with pytest.raises(ConfigError, match="juggling"):
        next(corpus.stream(0, "train", {"juggling": 1.0}))

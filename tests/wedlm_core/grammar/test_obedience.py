"""Whether states are left open follows from how choices were judged, and is found out anew."""

from __future__ import annotations

from wedlm_core.grammar.obedience import Obedience


def test_states_are_left_open_until_nearly_all_choices_are_refused() -> None:
    obedience = Obedience()
    for number in range(3000):
        assert obedience.leaves_open()
        obedience.note(needs_bits=number % 4 != 0)
    for _ in range(3000):
        obedience.note(needs_bits=True)
    assert sum(obedience.leaves_open() for _ in range(80)) == 10, "a few are tried all the same"


def test_a_place_where_all_sequences_are_refused_does_not_decide_for_those_that_follow() -> None:
    obedience = Obedience()
    for _ in range(20):
        for step in range(8):
            for _ in range(32):  # sequences in step with each other
                obedience.note(needs_bits=step < 4)
            assert all(obedience.leaves_open() for _ in range(32))


def test_once_choices_keep_to_the_grammar_states_are_left_open_again() -> None:
    obedience = Obedience()
    for _ in range(3000):
        obedience.note(needs_bits=True)
    asked = 0
    while not all(obedience.leaves_open() for _ in range(8)):
        asked += 8
        obedience.note(needs_bits=False)  # that one of eight which is tried
    assert asked < 1000


def test_where_next_best_tokens_settle_what_is_refused_states_stay_open() -> None:
    obedience = Obedience()
    for _ in range(300):
        assert obedience.looks_at_next()
        obedience.note_next(settled=True)
        obedience.note(needs_bits=False)
    assert all(obedience.leaves_open() and obedience.looks_at_next() for _ in range(80))


def test_next_best_tokens_are_looked_at_now_and_then_where_they_settle_nothing() -> None:
    obedience = Obedience()
    for _ in range(300):
        if obedience.looks_at_next():
            obedience.note_next(settled=False)
    assert sum(obedience.looks_at_next() for _ in range(80)) == 10
    looked = 0
    while not all(obedience.looks_at_next() for _ in range(8)):
        looked += 8
        obedience.note_next(settled=True)  # that one of eight which is looked at
    assert looked <= 16

"""Whether states are left open follows from how choices were judged, and is found out anew."""

from __future__ import annotations

from wedlm_core.grammar.obedience import Obedience


def test_states_are_left_open_until_most_choices_are_refused() -> None:
    obedience = Obedience()
    for number in range(300):
        assert obedience.leaves_open()
        obedience.note(number % 2 == 0)  # half of them: a refusal costs more than an allowed choice saves
    for _ in range(300):
        obedience.note(True)
    assert sum(obedience.leaves_open() for _ in range(80)) == 10, "a few are tried all the same"


def test_once_choices_keep_to_the_grammar_states_are_left_open_again() -> None:
    obedience = Obedience()
    for _ in range(300):
        obedience.note(True)
    asked = 0
    while not all(obedience.leaves_open() for _ in range(8)):
        asked += 8
        obedience.note(False)  # that one of eight which is tried
    assert asked < 300

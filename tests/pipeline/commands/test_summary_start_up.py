"""The start of actors, phase by phase."""

from __future__ import annotations

from pipeline.commands.summary import PHASES, StartUp

FIRST = {"scheduled": 4.0, "process started": 60.0, "torch imported": 1.0, "model fetched": 8.0, "model loaded": 2.0,
         "kernels ready": 15.0, "step costs known": 3.0}  # fmt: skip
LATER = {"scheduled": 1.0, "torch imported": 1.0, "model fetched": 0.0, "model loaded": 2.0, "kernels ready": 0.5}


def test_phases_are_summed_and_spread_over_the_actors() -> None:
    found = StartUp.of([LATER, FIRST, LATER])
    assert found.actors == 3
    assert found.median == {"scheduling": 1.0, "fetch": 0.0, "load": 3.0, "compile": 0.5, "measure": 0.0, "all": 4.5}
    assert found.worst == {"scheduling": 4.0, "fetch": 8.0, "load": 3.0, "compile": 15.0, "measure": 3.0, "all": 33.0}
    assert found.describe() == (
        "Start of 3 actors: 4.5 s (worst 33.0): scheduling 1.0 s (worst 4.0), fetch 0.0 s (worst 8.0), "
        "load 3.0 s (worst 3.0), compile 0.5 s (worst 15.0), measure 0.0 s (worst 3.0)"
    )


def test_of_one_actor_there_is_no_worst_and_of_none_no_line() -> None:
    assert "worst" not in StartUp.of([FIRST]).describe()
    assert StartUp.of([]) == StartUp()
    assert StartUp().describe() == ""
    assert set(PHASES) == {"scheduling", "fetch", "load", "compile", "measure"}

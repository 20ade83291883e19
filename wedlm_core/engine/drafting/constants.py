"""The constants of drafting: each with its unit and the reason for its value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DraftingConstants:
    """Constants of drafting, one a line."""

    # Acceptance
    counts_kept: float = 0.98  # share of counts kept per forward: about 50 forwards count, so changes are noticed
    prior_hazard: float = 0.7  # probability before the first forward: high enough that masks are tried
    job_prior: float = 3.0  # tests; weight of prior_hazard in the job, and of votes in a class: soon outweighed
    sequence_prior: float = 48.0  # tests; weight of the job in a sequence's count at one offset
    failure_prior: float = 12.0  # failures; weight of the job in the failure ratio of a sequence: luck evens out
    # Step time
    measured_seconds: tuple[float, float] = (2.5, 10.0)  # limits of a measurement; between them, 400 forwards
    measured_contexts: tuple[int, int] = (64, 512)  # tokens; few, and enough for the time to read KV to show
    measured_sequences: int = 128  # most sequences in a measured forward: larger engines share a table
    disturbed: float = 3.0  # times the expected seconds: a step counts no more, as something else disturbed it
    # Plans
    near_best: float = 0.999  # share of the best rate: the fewest rows that reach it are chosen, as more tell no more
    plan_forwards: tuple[int, int] = (8, 64)  # least and most between plans: one takes as long as a small forward
    # Controller
    trial_tokens: int = 32  # tokens of each sequence in a trial, and the weight of the prior 1 in a correction
    uncounted: int = 4  # first forwards of a trial, not counted: their windows are still those of the usual arm
    trial_share: float = 0.002  # share of the seconds that trials of one arm may lose
    near: float = 0.6  # share of the best rate that an arm has to be expected to reach to be tried at the start
    least_gain: float = 0.03  # another arm has to be faster by this share to become the usual one
    # History
    orders: tuple[int, ...] = (1, 3)  # tokens; lengths of the n-grams that are indexed: 8 bytes a token each
    walk: int = 32  # occurrences that vote, and tokens of a match that count: more hardly change the vote
    least_acceptance: float = 0.05  # probability below which a draft is not worth its bookkeeping
    slow_kept: float = 0.998  # share kept of a class's counts per test, and of the prefill's per forward: 500 count


CONSTANTS = DraftingConstants()

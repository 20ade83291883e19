"""The constants of drafting: each with its unit and the reason for its value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONSTANTS", "DraftingConstants"]


@dataclass(frozen=True, kw_only=True)
class DraftingConstants:
    """Constants of drafting, one a line. ``benchmarks.decode.ablation`` changes some, to leave a part out."""

    # Acceptance
    counts_kept: float = 0.98  # share of counts kept per forward: about 50 forwards count, so changes are noticed
    prior_hazard: float = 0.85  # probability before the first forward: high, so that masks are tried
    job_prior: float = 3.0  # tests; weight of prior_hazard in the counts of the job: soon outweighed
    sequence_prior: float = 48.0  # tests; weight of the job in a sequence's count at one offset
    failure_prior: float = 12.0  # failures; weight of the job in the failure ratio of a sequence: luck evens out
    # Step time
    speed_kept: float = 0.95  # share of the speed kept per forward: about 20 forwards, so one disturbance counts little
    prefill_kept: float = 0.998  # share of the prefill counts kept per forward: bursts of new prompts even out
    # Plans
    plan_forwards: int = 8  # least forwards between plans: a plan takes as long as a small forward
    most_plan_forwards: int = 64  # most forwards between plans, reached while plans change nothing
    # Controller
    trial_tokens: int = 32  # tokens of each sequence in a trial, and the weight of the prior 1 in a correction
    uncounted: int = 4  # first forwards of a trial, not counted: their windows are still those of the usual arm
    trial_share: float = 0.002  # share of the seconds that trials of one arm may lose
    near: float = 0.6  # share of the best rate that an arm has to be expected to reach to be tried twice at the start
    least_gain: float = 0.03  # another arm has to be faster by this share to become the usual one
    # History
    orders: tuple[int, ...] = (1, 3, 8)  # tokens; lengths of the n-grams that are indexed: 8 bytes a token each
    walk: int = 32  # occurrences that vote, and tokens of a match that count: more hardly change the vote
    least_acceptance: float = 0.05  # probability below which a draft is not worth its bookkeeping
    class_kept: float = 0.998  # share of a class's counts kept per test: about 500 tests count
    class_prior: float = 8.0  # tests; weight of the votes in a class, and of the classes in the failures of a sequence


CONSTANTS = DraftingConstants()

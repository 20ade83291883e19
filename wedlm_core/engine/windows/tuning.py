"""The constants of the planner, with what each is, its unit and why it has this value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_TUNING", "PlannerTuning"]


@dataclass(frozen=True, kw_only=True)
class PlannerTuning:
    """Constants and switches of the gates, one a line: ``benchmarks.decode.ablation`` leaves each of them out."""

    # Acceptance
    forget: float = 0.95  # weight of a sequence's past per observation: about twenty forwards count
    job_kept: float = 0.99  # of the job's counts per forward: about a hundred count
    prior_hazard: float = 0.85  # before anything was seen: hopeful, so that windows are tried
    job_prior: float = 3.0  # observations; weight of that in the job's estimates
    prior_trials: float = 12.0  # observations; weight of the job in a sequence's own estimate at an offset
    prior_failures: float = 3.0  # failures; weight of "fails like the job" in a sequence's failure ratio
    failure_ratio: bool = True
    spread: bool = True
    spread_count: float = 10.0  # weight of the prior in the measure of how much sequences differ
    spread_most: float = 2000.0  # what sequences add is halved when it passes this
    lengths: int = 512  # finished outputs that tell how long outputs are
    length_prior: int = 256  # tokens; one output of this length as long as few have ended
    reached: float = 0.1  # windows are not wider than outputs go on with this probability
    alive: bool = True
    # Allocation
    keep_gain: float = 0.01  # windows change only for at least this much more
    first_prices: tuple[float, ...] = (0.0, 0.02, 0.06, 0.15, 0.25, 0.35, 0.45, 0.6)  # commits per row
    first_step: float = 0.4
    rounds: int = 4
    fill: bool = True
    some: int = 64  # sequences up to which windows are then changed one by one
    climbs: int = 8
    climb_gain: float = 1.001
    hardly: float = 0.03  # of what falls to a sequence of the commits per second
    arrivals: bool = True
    new_window: bool = True
    kept: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)  # stale drafts to keep that are looked at
    frugal: float = 1.25
    nearly: float = 0.98
    drop_drafts: bool = True
    whole_outputs: bool = True
    prefill: bool = True
    # Planner
    correct: float = 0.2  # weight of one forward in the correction of the table
    trust: float = 3.0  # a forward that took more than this many times what was measured was disturbed
    flow_kept: float = 0.998  # per forward, of the counts of commits, prefill rows and ends
    flow_prior: float = 500.0  # commits without any prefill are added to the count
    probe_share: float = 0.01  # share of rows spent on probes
    probe_masks: int = 4
    first_probes: int = 8
    crowd: int = 8
    few: int = 4
    gain_prior: float = 100.0
    gain_range: tuple[float, float] = (0.2, 1.1)
    gain_kept: float = 0.9
    surprise: float = 2.0
    grown: float = 1.25
    calm: int = 8
    check: bool = True
    advantage: float = 0.3
    margin: float = 1.02
    plan_base: int = 4
    plan_per: int = 16
    # Host time
    host_kept: float = 0.99
    host_prior: float = 4.0
    disturbed: float = 5.0
    turnover: bool = True
    host: bool = True
    split_host: bool = True
    pad_mean: bool = True


DEFAULT_TUNING = PlannerTuning()

"""The constants of the planner: what each is, its unit, and why it has this value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_TUNING", "PlannerTuning"]


@dataclass(frozen=True, kw_only=True)
class PlannerTuning:
    """Constants of the planner, one a line; ``benchmarks.decode.ablation`` measures what each gate is worth."""

    # Acceptance
    sequence_kept: float = 0.98  # share of a sequence's counts kept per forward: about 50 forwards count
    job_kept: float = 0.98  # share of the job's counts kept per forward: about 50 count, so that changes are noticed
    prior_hazard: float = 0.85  # probability before anything was seen: hopeful, so that windows are tried
    prior_job: float = 3.0  # observations; weight of that prior in the job's estimates: soon outweighed
    prior_sequence: float = 48.0  # observations; weight of the job in a sequence's estimate at one offset
    prior_failures: float = 12.0  # failures; weight of the job in a sequence's failure ratio: luck evens out
    # Forwards
    forward_error: float = 0.1  # standard error of the logarithm of one forward's seconds
    speed_error: float = 0.15  # of the machine's speed over that of the table's day, before any forward
    speed_drift: float = 0.1  # by which that changes from one forward that counts to the next
    shape_error: float = 0.1  # of the table about some rows over others, before any forward of these
    shape_drift: float = 0.005  # by which that changes likewise
    unlikely: float = 2.0  # standard errors at which what a forward tells is clipped: the machine did something else
    correction_interval: int = 4  # forwards between those that count: comparing takes 2% of the smallest
    host_kept: float = 0.99  # share of the host time's sums kept per step: about 100 steps count
    commits_alike: float = 0.01  # square of the relative spread of commits below which host time counts as fixed
    disturbed: float = 3.0  # ratio to what was expected at which times are clipped: the machine did something else
    # Allocation
    near_optimal: float = 0.999  # share of the best rate; estimates flatter wide windows, so the cheapest near it wins
    alone_within: float = 0.96  # share of the best rate at which no masks are forwarded: what they bring is not certain
    # Plans
    least_interval: int = (
        8  # forwards between plans at least: a plan takes a third of a millisecond, as small forwards do
    )
    first_rival_interval: int = 64  # forwards before the second time, twice as many each time: tables may be wrong
    rival_interval: int = 4096  # forwards after which windows are closed, or opened, to time that: it costs 0.1%.
    # A forward with windows counts as often as a sequence has rows in it: so many without take as long
    rival_within: float = 0.6  # share of the best rate that is expected of it: by less the cost of rows is not wrong
    visit_share: float = 0.003  # of the time that visits to what comes second may cost; 0 is no visits
    plan_share: float = 0.02  # of the time that plans may take, once a few have followed each other
    quiet_share: float = 0.001  # the same while plans change nothing, where that makes them rarer than patience does
    most_patience: int = 8  # of that interval at most, while plans change nothing: else they take a tenth of a step
    most_patience_alone: int = 16  # the same while they give no masks: to see an easier job late costs little
    most_kept_plans: int = 8  # plans that stay as they are, while no draft tells anything, before one is made anew
    sequences_per_forward: int = 64  # sequences that lengthen the interval by 1: planning takes time for each of them
    prefill_kept: float = 0.998  # share of the counts of commits and prefill rows kept per forward: bursts even out
    prior_commits: float = 500.0  # commits without prefill among these counts: a job begins with a burst of prefill
    lengths_kept: int = 64  # outputs whose lengths count: the last ones, so that changes are noticed
    lengths_trusted: int = 8  # outputs that have to end before their lengths count: those that end first are short
    probe_share: float = 0.01  # share of the time that probes of sequences without masks may take: hardly a cost
    probe_cost: float = 0.1  # share of a forward that its first masks cost besides rows: attention has wider tiles then
    most_probe_patience: int = 4  # times as rare at most, while no sequence gets masks: they take time for nothing then
    probe_masks: int = 4  # masks of a probe: enough to see three drafts


DEFAULT_TUNING = PlannerTuning()

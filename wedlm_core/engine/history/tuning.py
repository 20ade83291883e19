"""The constants of history drafts: what each is, its unit, and why it has this value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_TRIALS", "DEFAULT_TUNING", "HistoryTuning", "TrialTuning"]


@dataclass(frozen=True, kw_only=True)
class HistoryTuning:
    """Constants of :class:`wedlm_core.engine.history.History`, one a line."""

    # Matches
    orders: tuple[int, ...] = (1, 3, 8)  # tokens, ascending; n-grams that are indexed: each costs 8 bytes per token
    walk: int = 32  # occurrences looked at per order, latest first: more hardly change the vote
    longest: int = 32  # tokens of a match that count: places that share as many vote with equal weight
    # Proposals
    least_acceptance: float = 0.05  # below it a draft is not worth even the cheapest row
    least_probability: float = 0.5  # of a draft behind those before it: below it sources are looked for anew
    searches: int = 3  # for sources, per proposal: more hardly find more
    searched_behind: float = 0.2  # acceptance of the drafts so far, at least: others seldom have any bought behind them
    # Learning
    cell_kept: float = 0.998  # share of a class's counts kept per test: about 500 tests count
    cell_prior: float = 8.0  # tests; weight of the smoothed share of votes before anything was tested
    slot_kept: float = 0.95  # share of a sequence's counts kept per test: about 20 tests count
    slot_prior: float = 8.0  # failures; weight of the job in a sequence's ratio of failures


DEFAULT_TUNING = HistoryTuning()


@dataclass(frozen=True, kw_only=True)
class TrialTuning:
    """Constants of :class:`wedlm_core.engine.history_trials.Trials`, one a line.

    A comparison is the logarithm of seconds per token with drafts over those without, and has a standard error.
    """

    # Phases, in forwards
    at_first: int = 128  # with drafts at the beginning, which learn how far to trust them; then they are compared
    enough_forwards: int = 48  # of these, if they had
    enough_sequences: int = 1024  # together
    trial: int = 192  # of a trial at most: until then it ends as soon as the difference is clear
    uncounted: int = 16  # at first, of each phase: windows have yet to follow, texts are taken in, kernels loaded
    hopeless: int = 6  # of a trial, after which it ends if none of them gained anything
    idle: int = 48  # in a row without gain, after which drafts that paid, or gained in a trial, are not asked for
    late: int = 1024  # without drafts at first, where forwards overlap: drafts make each wait for the one before it
    pause: int = 192  # without drafts, twice as many after each trial that fails,
    longest_pause: int = 4096  # and so many at most
    trial_share: float = 0.003  # of the time that trials may cost: a pause is as much longer,
    most_afforded: int = 16_384  # and so long at most: only small models have trials as dear
    check: int = 128  # without drafts at most, now and then where they pay, to compare anew
    checked: int = 256  # with drafts between checks at first, twice as many after each in which they pay,
    most_checked: int = 2048  # and so many at most
    baseline: int = 96  # of a pause before a trial that are recorded: of more nothing is kept
    counted: int = 12  # either way that a difference takes to be clear
    given_up: int = 48  # of a trial before it fails: how far drafts are to be trusted is learned in it,
    first_given_up: int = 128  # and in the first one, for which there is little text that could repeat, not soon
    # Comparisons
    prior_error: float = 0.3  # standard error before any trial
    remembered: int = 1 << 16  # forwards after which what trials said counts e times less
    machine_error: float = 0.03  # of each comparison, besides that of its forwards: shared machines change their speed
    pays: float = 0.98  # of the seconds per token, at most, for drafts to pay: what they save less is chance
    sure: float = 2.0  # standard errors by which it is clear that they do,
    futile: float = 1.5  # and that they do not: a trial that fails takes time for nothing
    likely: float = 1.0  # by which they pay in a check, for the next one to come later: half the time would miss them
    clear: float = 3.0  # by which they pay whatever was found before, or lose so much that no trial has to go on
    vague: float = 0.2  # standard error from which on nothing is clear: some forward was disturbed
    # Where a trial ends however little was learned by then, as no masks are forwarded in it, and these may bring
    # several times as much
    loses_much: float = 1.3  # times the seconds per token, at least,
    brings_little: float = 1.25  # tokens of a sequence and forward, at most, though drafts were bought


DEFAULT_TRIALS = TrialTuning()

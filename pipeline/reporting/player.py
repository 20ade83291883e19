"""The decode player: the values of each trace for its script, and the sentences that explain it."""

from __future__ import annotations

from typing import Any

from pipeline.codec import tokens_per_forward
from pipeline.reporting.chart import figure
from pipeline.reporting.facts import describe_drafts
from pipeline.reporting.traces import RowTrace

ABOUT = {
    "verified": "Masks propose tokens ahead of the text. The next forward checks these drafts with the next-token "
                "head, all at once. Drafts that agree with it are committed, so the text is exactly that of "
                "autoregressive decoding.",
    "autoregressive": "Each forward commits one token.",
    "reference": "Masks are filled where the model is certain enough, in any order. A token leaves the window once all "
                 "before it are filled.",
    "streaming": "Masks are filled where the model is certain enough, in any order; the next-token head fills the "
                 "leftmost, so every forward commits.",
    "blockwise": "Masks of a block are filled where the model is certain enough. The block leaves when all of it is "
                 "filled.",
}  # fmt: skip
"""Strategy -> how it decodes."""
_SENT = ("strategy", "prompt", "prompt_cut", "window", "pieces", "token_ids", "forwards", "plain_ids", "plain_pieces",
         "vocabulary", "same", "text")  # fmt: skip


def player_data(trace: RowTrace) -> dict[str, Any]:
    """The plain values that the script needs."""
    raw = trace.to_dict()
    return {**{name: raw[name] for name in _SENT}, "check": check_of(trace)}


def check_of(trace: RowTrace) -> str:
    """Compare these tokens with those of the output and with autoregressive decoding, in a sentence or two."""
    count, part = len(trace.token_ids), "" if trace.whole else f"first {len(trace.token_ids)} of {trace.tokens} "
    if trace.same is None:
        first = f"The output does not hold token ids; the {part}tokens could not be compared."
    elif trace.same:
        first = f"Checked: {'all' if trace.whole else 'the'} {part or f'{count} '}tokens are those of the output."
    else:
        first = "These tokens are not those of the output. " + (
            "With this strategy they depend on the window, which the run chose by load."
            if trace.strategy == "streaming" else "On a GPU nearly equal tokens may fall to either side."
        )  # fmt: skip
    shared = min(count, len(trace.plain_ids))
    if trace.strategy != "autoregressive":
        equal = trace.token_ids[:shared] == trace.plain_ids[:shared]
        first += " They equal autoregressive decoding's." if equal else " Autoregressive decoding chooses others."
    return f"{first} {_in_the_run(trace)}".rstrip()


def _in_the_run(trace: RowTrace) -> str:
    """Describe how the run itself decoded the row; empty if that is not known."""
    if not trace.run_forwards:
        return ""
    each = tokens_per_forward(trace.tokens, trace.run_forwards)
    window = f", of {figure(trace.run_window)} rows on average" if trace.run_window else ""
    drafts = describe_drafts(trace.run_drafts, trace.tokens)
    return f"The run decoded this row in {trace.run_forwards} forwards{window}: {figure(each)} tokens per forward." + (
        f" Its drafts: {drafts}." if drafts else ""
    )

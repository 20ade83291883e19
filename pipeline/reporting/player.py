"""The decode player: the values of each trace for its script, and the sentences that explain it."""

from __future__ import annotations

from typing import Any

from pipeline.reporting.traces import RowTrace

ABOUT = {
    "verified": "Masks propose drafts. The next forward commits the drafts that agree with the next-token head, so the "
                "text is exactly that of autoregressive decoding.",
    "autoregressive": "Each forward commits one token.",
    "reference": "Masks that are certain enough are filled in any order. A token waits for all before it.",
    "streaming": "Masks that are certain enough are filled in any order. The next-token head fills the leftmost.",
    "blockwise": "Masks that are certain enough are filled. A block waits until all of its masks are filled.",
}  # fmt: skip
"""Strategy -> how it decodes."""
_SENT = ("strategy", "prompt", "window", "pieces", "token_ids", "forwards", "plain_ids", "plain_pieces", "vocabulary",
         "same")  # fmt: skip


def player_data(trace: RowTrace) -> dict[str, Any]:
    """The plain values that the script needs."""
    raw = trace.to_dict()
    return {**{name: raw[name] for name in _SENT}, "check": check_of(trace)}


def check_of(trace: RowTrace) -> str:
    """Compare these tokens with those of the output and with autoregressive decoding, in a sentence or two."""
    count, shared = len(trace.token_ids), min(len(trace.token_ids), len(trace.plain_ids))
    part = f"all {count}" if trace.whole else f"the first {count} of {trace.tokens}"
    if trace.same is None:
        said = "The output holds no token ids, so the tokens could not be compared."
    elif trace.same:
        said = f"Checked: {part} tokens are those of the output."
    else:
        said = "These tokens are not those of the output. " + (
            "With this strategy they depend on the window, which the run chose by load."
            if trace.strategy == "streaming" else "On a GPU nearly equal tokens may fall to either side."
        )  # fmt: skip
    if trace.strategy == "autoregressive":
        return said
    equal = trace.token_ids[:shared] == trace.plain_ids[:shared]
    return f"{said} {'They equal' if equal else 'They differ from'} autoregressive decoding's."

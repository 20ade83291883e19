"""The section with the decode player: what scripts fill, and what explains it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.codec import redact, tokens_per_forward
from pipeline.reporting.drafts import describe_drafts
from pipeline.reporting.html import Safe, el, join, script_json
from pipeline.reporting.numbers import figure
from pipeline.reporting.parts import section
from pipeline.reporting.traces import RowTrace

__all__ = ["player"]

_SPEEDS = ("0.25", "0.5", "1", "2", "4", "8")
_ABOUT = {
    "verified": "Masks propose tokens ahead of the text. The next forward checks these drafts with the next-token "
                "head, all at once: what it agrees with is committed, so the text is exactly that of autoregressive "
                "decoding.",
    "autoregressive": "Each forward commits one token.",
    "reference": "Masks are filled where the model is certain enough, in any order. A token leaves the window once all "
                 "before it are filled.",
    "streaming": "Masks are filled where the model is certain enough, in any order; the next-token head fills the "
                 "leftmost, so every forward commits.",
    "blockwise": "Masks of a block are filled where the model is certain enough. The block leaves when all of it is "
                 "filled.",
}  # fmt: skip
_LEGEND = (
    ("accepted", "right draft, committed"),
    ("decided", "committed by the next-token head"),
    ("replaced", "wrong draft, replaced"),
    ("draft", "draft, or filled and waiting"),
    ("filled", "mask filled in this forward"),
    ("stale", "draft behind a wrong one"),
    ("mask", "mask"),
)


def player(traces: Sequence[RowTrace], note: str | None) -> Safe | None:
    """The player of some traces; None without any, unless ``note`` says why."""
    if not traces:
        return section("decode", "Row by row, forward by forward", note) if note else None
    strategies = dict.fromkeys(trace.strategy for trace in traces)
    about = " ".join(_ABOUT.get(name, "") for name in strategies)
    scripts = el("noscript", el("p", "The player needs scripts, which this browser does not run.", class_="nothing"))
    parts = (_head(traces), _panels(), _race(), _controls(), _legend(), _steps())
    box = el("div", *parts, id="player", class_="player", tabindex=0, role="group", hidden=True,
             aria_label="decode player: space plays and pauses, arrow keys step, home and end jump")  # fmt: skip
    hint = el("p", f"{note} " if note else None, _HINT, class_="hint")
    return section("decode", "How it was decoded", about, box, scripts, hint,
                   script_json("traces", [_data(trace) for trace in traces]))  # fmt: skip


_HINT = (
    "This is a replay and not the decoding of the run: a few sampled rows were decoded once more, with every step "
    "recorded. The tokens are checked. Windows and drafts depend on the batch, so they are not those of the run. One "
    "forward is one tick of the clock on both sides; a forward with a window computes more rows."
)


def _data(trace: RowTrace) -> dict[str, Any]:
    """What the scripts need."""
    raw = trace.to_dict()
    names = ("strategy", "prompt", "prompt_cut", "window", "pieces", "token_ids", "forwards", "plain_ids",
             "plain_pieces", "vocabulary", "same", "text")  # fmt: skip
    return {**{name: raw[name] for name in names}, "check": check_of(trace)}


def check_of(trace: RowTrace) -> str:
    """What is known of these tokens and those of the output, in a sentence or two."""
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
    """Say how the run itself decoded the row; empty if that is not known."""
    if not trace.run_forwards:
        return ""
    each = tokens_per_forward(trace.tokens, trace.run_forwards)
    window = f", of {figure(trace.run_window)} rows on average" if trace.run_window else ""
    drafts = describe_drafts(trace.run_drafts, trace.tokens)
    return f"The run decoded this row in {trace.run_forwards} forwards{window}: {figure(each)} tokens per forward." + (
        f" Its drafts: {drafts}." if drafts else ""
    )


def _head(traces: Sequence[RowTrace]) -> Safe:
    options = [
        el("option", f"{_short(trace.row_id)} \N{MIDDLE DOT} {len(trace.token_ids)} tokens", value=i)
        for i, trace in enumerate(traces)
    ]
    chooser = el("label", el("span", "Row", class_="label"), el("select", *options, data_part="rows"))
    prompt = el("div", el("span", "Prompt", class_="label"), el("pre", data_part="prompt", dir="auto", tabindex=0))
    return el("div", chooser, prompt, class_="player-head")


def _short(row_id: str) -> str:
    name = redact(row_id)
    return name if len(name) <= 48 else f"\N{HORIZONTAL ELLIPSIS}{name[-47:]}"


def _panels() -> Safe:
    def panel(name: str, title: str) -> Safe:
        head = el("h3", el("span", title, data_part="strategy" if name == "own" else None),
                  el("span", data_part=f"{name}-count", class_="count"))  # fmt: skip
        return el("div", head, el("pre", data_part=name, dir="auto", tabindex=0), class_=f"panel {name}")

    return el("div", panel("own", "WeDLM"), panel("plain", "Autoregressive"), class_="panels")


def _race() -> Safe:
    lanes = el("svg", data_part="race", viewBox="0 0 1000 66", preserveAspectRatio="none", aria_hidden="true",
               class_="race")  # fmt: skip
    names = el("div", el("span", "WeDLM"), el("span", "autoregressive"), class_="lanes", aria_hidden="true")
    scrub = el("input", type="range", min=0, max=1, value=0, step=1, data_part="range", aria_label="forward")
    return el("div", names, el("div", lanes, scrub), class_="timeline")


def _controls() -> Safe:
    def button(action: str, text: str, label: str, kind: str = "") -> Safe:
        return el("button", text, type="button", data_part=action, aria_label=label, class_=kind or None)

    speeds = [el("option", f"{s}\N{MULTIPLICATION SIGN}", value=s, selected=s == "1") for s in _SPEEDS]
    buttons = (
        button("first", "\N{BLACK LEFT-POINTING DOUBLE TRIANGLE WITH VERTICAL BAR}\ufe0e", "to the beginning"),
        button("back", "\N{BLACK LEFT-POINTING TRIANGLE}\ufe0e", "one step back"),
        button("toggle", "Play", "play or pause", "primary"),
        button("next", "\N{BLACK RIGHT-POINTING TRIANGLE}\ufe0e", "one step on"),
        button("end", "\N{BLACK RIGHT-POINTING DOUBLE TRIANGLE WITH VERTICAL BAR}\ufe0e", "to the end"),
        el("label", el("span", "Speed", class_="label"), el("select", *speeds, data_part="speed")),
    )
    says = el("p", data_part="says", class_="says", role="status", aria_live="polite")
    return join(says, el("div", *buttons, class_="controls"), el("p", data_part="check", class_="check"))


def _legend() -> Safe:
    samples = {"mask": "", "replaced": ""}
    items = []
    for kind, text in _LEGEND:
        shown = el("span", el("del", "old") if kind == "replaced" else None, samples.get(kind, "text"),
                   "new" if kind == "replaced" else None, class_=f"cell {kind}", aria_hidden="true")  # fmt: skip
        items.append(el("li", shown, f" {text}"))
    return el("ul", *items, class_="player-legend")


def _steps() -> Safe:
    return el("details", el("summary", "Every forward in words"), el("ol", data_part="steps"), class_="in-words")

// The player. `wedlmPlayer` says what a frame shows: plain functions of a trace and a frame, without a document. The
// second part draws it and listens to people.
//
// A forward has two frames: its input (phase 0) and its output (phase 1). The last frame shows the whole text.
// Autoregressive decoding runs on the same clock: one forward of each at a time.
const wedlmPlayer = (() => {
  "use strict";
  const MASK = -1;
  const forwards = (trace) => Math.max(trace.forwards.length, trace.plain_ids.length);
  const lastFrame = (trace) => 2 * forwards(trace);
  const moment = (frame) => ({ forward: Math.floor(frame / 2), phase: frame % 2 });

  const start = (trace) => ({ frame: 0, last: lastFrame(trace), playing: false, speed: 1 });
  const actions = {
    play: (s) => ({ ...s, playing: true, frame: s.frame >= s.last ? 0 : s.frame }),
    pause: (s) => ({ ...s, playing: false }),
    toggle: (s) => (s.playing ? actions.pause(s) : actions.play(s)),
    next: (s) => actions.seek(s, s.frame + 1),
    back: (s) => actions.seek(s, s.frame - 1),
    first: (s) => actions.seek(s, 0),
    end: (s) => actions.seek(s, s.last),
    tick: (s) => ({ ...s, playing: s.frame + 1 < s.last, frame: Math.min(s.frame + 1, s.last) }),
    seek: (s, frame) => ({ ...s, playing: false, frame: Math.max(0, Math.min(Math.round(frame) || 0, s.last)) }),
    speed: (s, speed) => ({ ...s, speed: speed > 0 ? speed : s.speed }),
  };
  const reduce = (state, action, value) => (actions[action] ? actions[action](state, value) : state);
  const keys = { " ": "toggle", k: "toggle", ArrowRight: "next", ArrowLeft: "back", Home: "first", End: "end" };
  const actionOf = (key) => keys[key];

  const look = (trace, token) => trace.vocabulary[token] ?? "";
  const masked = (position) => ({ position, kind: "mask", text: "", label: "" });
  const proposed = (trace, position, kind, token) => ({ position, kind, text: look(trace, token), label: look(trace, token) });
  const kept = (trace, position, kind, before) => ({
    position, kind, text: trace.pieces[position] ?? "", label: look(trace, trace.token_ids[position]), before,
  });

  // The cells of the row's own strategy: committed text, then the window.
  const cells = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.token_ids.length;
    const done = (count) => Array.from({ length: Math.min(count, total) }, (_, i) => kept(trace, i, "done"));
    if (forward >= trace.forwards.length) return done(total);
    const [at, , window, committed, filled] = trace.forwards[forward];
    if (phase === 0) {
      return [...done(at), ...window.map((token, i) =>
        token === MASK ? masked(at + i) : proposed(trace, at + i, "draft", token))];
    }
    const held = (i) => (i < window.length ? window[i] : MASK);
    const shown = [...done(at), ...committed.map((token, i) => {
      if (held(i) === MASK) return kept(trace, at + i, "decided");
      return held(i) === token ? kept(trace, at + i, "accepted") : kept(trace, at + i, "replaced", look(trace, held(i)));
    })];
    if (forward === trace.forwards.length - 1) return shown;
    const wrong = shown.some((cell) => cell.kind === "replaced");
    const fills = new Map(filled);
    for (let i = committed.length; i < window.length; i += 1) {
      if (window[i] !== MASK) shown.push(proposed(trace, at + i, wrong ? "stale" : "draft", window[i]));
      else shown.push(fills.has(i) ? proposed(trace, at + i, "filled", fills.get(i)) : masked(at + i));
    }
    return shown;
  };

  // The same for autoregressive decoding.
  const plainCells = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.plain_ids.length;
    const cell = (i, kind) => ({ position: i, kind, text: trace.plain_pieces[i], label: look(trace, trace.plain_ids[i]) });
    const shown = Array.from({ length: Math.min(forward, total) }, (_, i) => cell(i, "done"));
    if (forward < total) shown.push(phase === 0 ? masked(forward) : cell(forward, "decided"));
    return shown;
  };

  const committedBy = (trace, frame) => {
    const { forward, phase } = moment(frame);
    if (forward >= trace.forwards.length) return trace.token_ids.length;
    const [at, , , committed] = trace.forwards[forward];
    return at + (phase ? committed.length : 0);
  };
  const plainBy = (trace, frame) => Math.min(moment(frame).forward + moment(frame).phase, trace.plain_ids.length);
  const textOf = (shown) => shown.map((cell) => cell.text).join("");
  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  const inputOf = (trace, [, rows, window]) => {
    const masks = window.filter((token) => token === MASK).length, drafts = window.length - masks;
    const parts = [...(rows > window.length ? ["the last token"] : []),
                   ...(drafts ? [many(drafts, trace.strategy === "verified" ? "draft" : "filled place")] : []),
                   ...(masks ? [many(masks, "mask")] : [])];
    const list = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts[0] ?? "nothing";
    return `computes ${many(rows, "row")} at once: ${list}.`;
  };
  const outputOf = (trace, frame, [at, , window, committed]) => {
    const shown = cells(trace, frame).filter((cell) => cell.position >= at);
    const of = (kind) => shown.filter((cell) => cell.kind === kind).length;
    const drafts = window.filter((token) => token !== MASK).length, right = of("accepted");
    const said = [];
    if (trace.strategy === "verified" && drafts) {
      if (of("replaced")) said.push(`${right} of ${many(drafts, "draft")} ${right === 1 ? "was" : "were"} right; the next one was wrong and is replaced.`);
      else said.push(right === drafts ? `All ${many(drafts, "draft")} were right.` : `${many(right, "draft")} were right.`);
    }
    said.push(committed.length ? `${many(committed.length, "token")} committed.` : "No token is committed yet.");
    if (of("filled")) said.push(`${many(of("filled"), "mask")} proposed the next ${trace.strategy === "verified" ? "drafts" : "tokens"}.`);
    return said.join(" ");
  };

  // A sentence or two about a frame.
  const describe = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.forwards.length, plain = trace.plain_ids.length;
    if (frame >= lastFrame(trace)) {
      return `Done. WeDLM took ${many(total, "forward")} for ${many(trace.token_ids.length, "token")}, ` +
        `autoregressive decoding ${many(plain, "forward")}: ${(total ? plain / total : 1).toFixed(1)} times as many.`;
    }
    if (forward >= total) return `WeDLM is done since forward ${total}. Autoregressive decoding goes on, one token a forward.`;
    const own = trace.forwards[forward];
    return phase ? `Forward ${forward + 1}: ${outputOf(trace, frame, own)}` : `Forward ${forward + 1} ${inputOf(trace, own)}`;
  };

  return { actionOf, cells, committedBy, describe, lastFrame, moment, plainBy, plainCells, reduce, start, textOf };
})();

if (typeof document !== "undefined" && document.getElementById("player")) {
  const root = document.getElementById("player");
  const traces = JSON.parse(document.getElementById("traces").textContent);
  const P = wedlmPlayer, FRAME_MS = 450;
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const own = find("own"), plain = find("plain"), range = find("range");
  let trace = traces[0], state = P.start(trace), fresh = true, timer = 0; // fresh: not played yet

  const span = (className, text) => Object.assign(document.createElement("span"), { className, textContent: text });
  const draw = (cell) => {
    const node = span(`cell ${cell.kind}`, "");
    if (cell.kind === "mask") return node;
    if (cell.before !== undefined) node.append(Object.assign(document.createElement("del"), { textContent: cell.before.trim() || "\u21b5" }));
    const visible = cell.text.replaceAll("\n", "");
    if (cell.text.includes("\n")) node.classList.add("line");
    if (visible) node.append(visible);
    else if (!cell.text.includes("\n")) node.append(span("special", cell.label || "\u2205"));
    return node;
  };
  const fill = (place, cells) => {
    const done = cells.filter((cell) => cell.kind === "done"), window = span("window", "");
    for (const cell of cells.slice(done.length)) window.append(draw(cell), cell.text.includes("\n") ? "\n" : "");
    place.replaceChildren(P.textOf(done), ...(window.hasChildNodes() ? [window] : []));
    place.scrollTop = place.scrollHeight;
  };

  const show = () => {
    const { frame } = state, ahead = P.moment(frame).forward + 1;
    fill(own, P.cells(trace, frame));
    fill(plain, P.plainCells(trace, frame));
    find("says").textContent = P.describe(trace, frame);
    const counts = (tokens, ids, forwards) => `${tokens} of ${ids} tokens \u00b7 ${Math.min(ahead, forwards)} of ${forwards} forwards`;
    find("own-count").textContent = counts(P.committedBy(trace, frame), trace.token_ids.length, trace.forwards.length);
    find("plain-count").textContent = counts(P.plainBy(trace, frame), trace.plain_ids.length, trace.plain_ids.length);
    root.classList.toggle("own-done", ahead > trace.forwards.length);
    range.value = String(frame);
    range.setAttribute("aria-valuetext", find("says").textContent);
    find("toggle").textContent = state.playing ? "Pause" : "Play";
    find("back").disabled = find("first").disabled = frame === 0;
    find("next").disabled = find("end").disabled = frame === state.last;
  };
  const tick = () => {
    timer = state.playing ? setTimeout(() => { state = P.reduce(state, "tick"); show(); tick(); }, FRAME_MS / state.speed) : 0;
  };
  const act = (action, value) => {
    if (fresh && action === "toggle") state = P.reduce(state, "first");
    if (action !== "speed") fresh = false;
    state = P.reduce(state, action, value);
    clearTimeout(timer);
    show();
    tick();
  };
  const choose = (number) => {
    clearTimeout(timer);
    trace = traces[number];
    state = { ...P.start(trace), speed: state.speed, frame: Math.min(3, P.lastFrame(trace)) };
    fresh = true;
    range.max = String(state.last);
    find("prompt").textContent = (trace.prompt_cut ? "\u2026" : "") + trace.prompt;
    find("own-title").textContent = `WeDLM, ${trace.strategy}${trace.window ? `, ${trace.window} masks` : ""}`;
    find("check").textContent = trace.check;
    find("check").className = trace.same === false ? "check differs" : "check";
    show();
  };

  for (const action of ["toggle", "back", "next", "first", "end"]) find(action).addEventListener("click", () => act(action));
  range.addEventListener("input", () => act("seek", Number(range.value)));
  find("speed").addEventListener("change", (event) => act("speed", Number(event.target.value)));
  find("rows").addEventListener("change", (event) => choose(Number(event.target.value)));
  root.addEventListener("keydown", (event) => {
    const tag = event.target.tagName, action = P.actionOf(event.key);
    if (!action || event.ctrlKey || event.metaKey || event.altKey || tag === "SELECT") return;
    if ((tag === "BUTTON" && event.key === " ") || (tag === "INPUT" && event.key !== " ")) return;
    event.preventDefault();
    act(action);
  });
  root.hidden = false;
  const first = Math.max(0, traces.findIndex((one) => one.strategy === "verified"));
  find("rows").value = String(first);
  choose(first);
}

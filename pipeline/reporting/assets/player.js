// The player. `wedlmPlayer` has functions of a trace and a frame, without a document. The second part draws frames.
// A forward has two frames: its input (phase 0) and its output (phase 1). The last frame shows the whole text.
// Autoregressive decoding runs on the same clock: one forward of each at a time.
const wedlmPlayer = (() => {
  "use strict";
  const MASK = -1;
  const forwards = (trace) => Math.max(trace.forwards.length, trace.plain_ids.length);
  const lastFrame = (trace) => 2 * forwards(trace);
  const moment = (frame) => ({ forward: Math.floor(frame / 2), phase: frame % 2 });

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
    const parts = [...(drafts ? [many(drafts, trace.strategy === "verified" ? "draft" : "filled place")] : []),
                   ...(masks ? [many(masks, "mask")] : []), ...(rows > window.length ? ["the last token"] : [])];
    return `computes ${many(rows, "row")} at once: ${parts.join(", ")}.`;
  };
  const outputOf = (trace, frame, [at, , window, committed]) => {
    const shown = cells(trace, frame).filter((cell) => cell.position >= at);
    const of = (kind) => shown.filter((cell) => cell.kind === kind).length;
    const drafts = trace.strategy === "verified" ? window.filter((token) => token !== MASK).length : 0;
    return [...(drafts ? [`${of("accepted")} of ${many(drafts, "draft")} accepted`] : []),
            `${many(committed.length, "token")} committed`, `${many(of("filled"), "mask")} filled.`].join(", ");
  };

  // A sentence about a frame.
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

  return { cells, committedBy, describe, lastFrame, moment, plainBy, plainCells, textOf };
})();

if (typeof document !== "undefined" && document.getElementById("player")) {
  const root = document.getElementById("player");
  const traces = JSON.parse(document.getElementById("traces").textContent);
  const P = wedlmPlayer;
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const own = find("own"), plain = find("plain"), range = find("range");
  let trace = traces[0], frame = 0, last = 0, timer = 0;

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
    const ahead = P.moment(frame).forward + 1;
    fill(own, P.cells(trace, frame));
    fill(plain, P.plainCells(trace, frame));
    find("says").textContent = P.describe(trace, frame);
    const counts = (tokens, ids, forwards) => `${tokens} of ${ids} tokens \u00b7 ${Math.min(ahead, forwards)} of ${forwards} forwards`;
    find("own-count").textContent = counts(P.committedBy(trace, frame), trace.token_ids.length, trace.forwards.length);
    find("plain-count").textContent = counts(P.plainBy(trace, frame), trace.plain_ids.length, trace.plain_ids.length);
    range.value = String(frame);
    range.setAttribute("aria-valuetext", find("says").textContent);
    find("toggle").textContent = timer ? "Pause" : "Play";
    find("back").disabled = frame === 0;
    find("next").disabled = frame === last;
  };
  const stop = () => { timer = clearInterval(timer); };
  const seek = (to) => { frame = Math.max(0, Math.min(to, last)); show(); };
  const tick = () => { if (frame + 1 >= last) stop(); seek(frame + 1); };
  const toggle = () => {
    if (timer) stop();
    else timer = setInterval(tick, 450);
    seek(timer && frame === last ? 0 : frame);
  };
  const choose = (number) => {
    trace = traces[number];
    last = P.lastFrame(trace);
    range.max = String(last);
    find("prompt").textContent = trace.prompt;
    find("own-title").textContent = `WeDLM, ${trace.strategy}${trace.window ? `, ${trace.window} masks` : ""}`;
    find("check").textContent = trace.check;
    find("check").className = trace.same === false ? "check differs" : "check";
    seek(3);
  };
  const on = (name, event, action) => find(name).addEventListener(event, action);
  on("toggle", "click", toggle);
  on("back", "click", () => { stop(); seek(frame - 1); });
  on("next", "click", () => { stop(); seek(frame + 1); });
  on("range", "input", () => { stop(); seek(Number(range.value)); });
  on("rows", "change", (event) => { stop(); choose(Number(event.target.value)); });
  root.hidden = false;
  choose(0);
}

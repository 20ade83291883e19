// What the player shows: plain functions of a trace and a frame, without a document. player.js draws it.
//
// A forward has two frames: what goes in (phase 0), and what comes out (phase 1). One more frame, the last, shows the
// whole text. Autoregressive decoding runs beside it on the same clock: one forward of each at a time.
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
    next: (s) => ({ ...s, playing: false, frame: Math.min(s.frame + 1, s.last) }),
    back: (s) => ({ ...s, playing: false, frame: Math.max(s.frame - 1, 0) }),
    first: (s) => ({ ...s, playing: false, frame: 0 }),
    end: (s) => ({ ...s, playing: false, frame: s.last }),
    tick: (s) => (s.frame + 1 >= s.last ? { ...s, playing: false, frame: s.last } : { ...s, frame: s.frame + 1 }),
    seek: (s, frame) => ({ ...s, playing: false, frame: Math.max(0, Math.min(Math.round(frame) || 0, s.last)) }),
    speed: (s, speed) => ({ ...s, speed: speed > 0 ? speed : s.speed }),
  };
  const reduce = (state, action, value) => (actions[action] ? actions[action](state, value) : state);

  const keys = { " ": "toggle", k: "toggle", ArrowRight: "next", ArrowLeft: "back", Home: "first", End: "end" };
  const actionOf = (key) => keys[key];

  const piece = (trace, position) => (position < trace.pieces.length ? trace.pieces[position] : "");
  const look = (trace, token) => trace.vocabulary[token] ?? "";
  const committedCell = (trace, position, kind, before) => ({
    position, kind, text: piece(trace, position), label: look(trace, trace.token_ids[position]), before,
  });
  const tokenCell = (trace, position, kind, token) => {
    const text = look(trace, token);
    return { position, kind, text, label: text };
  };

  // The cells of the row's own strategy: committed text, then the window.
  const cells = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.token_ids.length;
    const done = (count) => Array.from({ length: Math.min(count, total) }, (_, i) => committedCell(trace, i, "done"));
    if (forward >= trace.forwards.length) return done(total);
    const [at, , window, committed, filled] = trace.forwards[forward];
    const shown = done(at);
    if (phase === 0) {
      window.forEach((token, i) => shown.push(
        token === MASK ? { position: at + i, kind: "mask", text: "", label: "" } : tokenCell(trace, at + i, "draft", token)));
      return shown;
    }
    const ends = forward === trace.forwards.length - 1;
    const wrong = committed.some((token, i) => i < window.length && window[i] !== MASK && window[i] !== token);
    committed.forEach((token, i) => {
      const held = i < window.length ? window[i] : MASK;
      if (held === MASK) shown.push(committedCell(trace, at + i, "decided"));
      else if (held === token) shown.push(committedCell(trace, at + i, "accepted"));
      else shown.push(committedCell(trace, at + i, "replaced", look(trace, held)));
    });
    if (ends) return shown;
    const fills = new Map(filled);
    for (let i = committed.length; i < window.length; i += 1) {
      if (window[i] !== MASK) shown.push(tokenCell(trace, at + i, wrong ? "stale" : "draft", window[i]));
      else if (fills.has(i)) shown.push(tokenCell(trace, at + i, "filled", fills.get(i)));
      else shown.push({ position: at + i, kind: "mask", text: "", label: "" });
    }
    return shown;
  };

  // The same for autoregressive decoding.
  const plainCells = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.plain_ids.length;
    const cell = (i, kind) => ({ position: i, kind, text: trace.plain_pieces[i], label: look(trace, trace.plain_ids[i]) });
    const shown = Array.from({ length: Math.min(forward, total) }, (_, i) => cell(i, "done"));
    if (forward < total) shown.push(phase === 0 ? { position: forward, kind: "mask", text: "", label: "" } : cell(forward, "decided"));
    return shown;
  };

  const committedBy = (trace, frame) => {
    const { forward, phase } = moment(frame);
    if (forward >= trace.forwards.length) return trace.token_ids.length;
    const [at, , , committed] = trace.forwards[forward];
    return at + (phase ? committed.length : 0);
  };
  const plainBy = (trace, frame) => {
    const { forward, phase } = moment(frame);
    return Math.min(forward + phase, trace.plain_ids.length);
  };
  const forwardsBy = (count, frame) => Math.min(moment(frame).forward + 1, count);

  const textOf = (shown) => shown.map((cell) => cell.text).join("");

  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const verifies = (trace) => trace.strategy === "verified";

  // One or two sentences about a frame.
  const describe = (trace, frame) => {
    const { forward, phase } = moment(frame);
    const total = trace.forwards.length;
    if (frame >= lastFrame(trace)) {
      const ratio = trace.forwards.length ? trace.plain_ids.length / trace.forwards.length : 1;
      return `Done. WeDLM took ${many(total, "forward")} for ${many(trace.token_ids.length, "token")}, ` +
        `autoregressive decoding ${many(trace.plain_ids.length, "forward")}: ${ratio.toFixed(1)} times as many.`;
    }
    if (forward >= total) return `WeDLM is done since forward ${total}. Autoregressive decoding goes on, one token a forward.`;
    const [at, rows, window, committed, filled] = trace.forwards[forward];
    const masks = window.filter((token) => token === MASK).length;
    const drafts = window.length - masks;
    if (phase === 0) {
      const head = rows - window.length > 0 ? ["the last token"] : [];
      const parts = [...head, ...(drafts ? [many(drafts, verifies(trace) ? "draft" : "filled place")] : []),
                     ...(masks ? [many(masks, "mask")] : [])];
      const list = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts[0] ?? "nothing";
      return `Forward ${forward + 1} computes ${many(rows, "row")} at once: ${list}.`;
    }
    const said = [];
    const shown = cells(trace, frame);
    const of = (kind) => shown.filter((cell) => cell.kind === kind && cell.position >= at).length;
    if (verifies(trace)) {
      const right = of("accepted");
      if (drafts && of("replaced")) said.push(`${right} of ${many(drafts, "draft")} ${right === 1 ? "was" : "were"} right; the next one was wrong and is replaced.`);
      else if (drafts) said.push(right === drafts ? `All ${many(drafts, "draft")} were right.` : `${many(right, "draft")} were right.`);
      said.push(`${many(committed.length, "token")} committed.`);
      if (of("filled")) said.push(`${many(of("filled"), "mask")} proposed the next drafts.`);
    } else {
      const positions = filled.map(([place]) => place).filter((place) => window[place] === MASK);
      const open = window.map((token, i) => (token === MASK && !positions.includes(i) ? i : -1)).filter((i) => i >= committed.length);
      const early = positions.filter((place) => open.some((other) => other < place)).length;
      if (positions.length) said.push(`${many(positions.length, "mask")} filled${early ? `, ${early} of them out of order` : ""}.`);
      said.push(committed.length ? `${many(committed.length, "token")} committed.` : "Nothing is committed yet.");
    }
    return `Forward ${forward + 1}: ${said.join(" ")}`;
  };

  // How much a frame shows: kinds of tokens, a wrong draft above all.
  const score = (trace, forward) => {
    const kinds = new Set(cells(trace, 2 * forward + 1).map((cell) => cell.kind));
    return kinds.size + (kinds.has("replaced") ? 2 : 0) + (forward > 0 ? 1 : 0);
  };

  // A frame that shows as much as possible: for who looks before playing, and for print.
  const telling = (trace) => {
    const scores = trace.forwards.map((_, forward) => score(trace, forward));
    return scores.length ? 2 * scores.indexOf(Math.max(...scores)) + 1 : 0;
  };

  // How much a trace shows in all: its best frame, and not too few forwards.
  const richness = (trace) => {
    const best = Math.max(0, ...trace.forwards.map((_, forward) => score(trace, forward)));
    return best + Math.min(trace.forwards.length, 12) / 6 + (trace.strategy === "autoregressive" ? -9 : 0);
  };

  return { MASK, actionOf, cells, committedBy, describe, forwards, forwardsBy, lastFrame, moment, plainBy, plainCells, reduce, richness,
           start, telling, textOf };
})();

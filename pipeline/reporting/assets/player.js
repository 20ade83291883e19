// Draws the player and listens to people; what is shown follows from player_state.js.
(() => {
  "use strict";
  const root = document.getElementById("player");
  const data = document.getElementById("traces");
  if (!root || !data) return;
  const traces = JSON.parse(data.textContent);
  if (!traces.length) return;
  const P = wedlmPlayer;
  const FORWARD_MS = 900;
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const own = find("own"), plain = find("plain"), says = find("says"), range = find("range"), race = find("race");
  let trace = traces[0];
  let state = P.start(trace);
  let fresh = true; // nobody has played yet
  let timer = 0;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const draw = (cell) => {
    const node = make("span", `cell ${cell.kind}`);
    if (cell.kind === "mask") { node.setAttribute("aria-label", "mask"); return node; }
    if (cell.before !== undefined) {
      const old = make("del", "", cell.before.trim() || "\u21b5");
      node.append(old);
    }
    const visible = cell.text.replaceAll("\n", "");
    if (cell.text.includes("\n") && cell.kind !== "done") node.classList.add("line");
    if (visible) node.append(make("span", "token", visible));
    else if (!cell.text.includes("\n") && cell.kind !== "done") node.append(make("span", "special", cell.label || "\u2205"));
    return node;
  };

  const fill = (place, cells) => {
    const nodes = document.createDocumentFragment();
    let group = null;
    let text = "";
    const flush = () => { if (text) { nodes.append(document.createTextNode(text)); text = ""; } };
    for (const cell of cells) {
      if (cell.kind === "done") { text += cell.text; continue; }
      flush();
      if (!group) { group = make("span", "window"); nodes.append(group); }
      group.append(draw(cell));
      if (cell.text.includes("\n")) group.append(document.createTextNode("\n"));
    }
    flush();
    place.replaceChildren(nodes);
    const last = place.querySelector(".window");
    if (last) {
      const box = place.getBoundingClientRect(), here = last.getBoundingClientRect();
      if (here.bottom > box.bottom) place.scrollTop += here.bottom - box.bottom + 8;
      if (here.top < box.top) place.scrollTop -= box.top - here.top + 8;
    } else if (state.frame === 0) place.scrollTop = 0;
  };

  const show = () => {
    fill(own, P.cells(trace, state.frame));
    fill(plain, P.plainCells(trace, state.frame));
    says.textContent = P.describe(trace, state.frame);
    const tokens = P.committedBy(trace, state.frame), others = P.plainBy(trace, state.frame);
    const took = P.forwardsBy(trace.forwards.length, state.frame), plainTook = P.forwardsBy(trace.plain_ids.length, state.frame);
    find("own-count").textContent = `${tokens} of ${trace.token_ids.length} tokens \u00b7 ${took} of ${trace.forwards.length} forwards`;
    find("plain-count").textContent = `${others} of ${trace.plain_ids.length} tokens \u00b7 ${plainTook} of ${trace.plain_ids.length} forwards`;
    root.classList.toggle("own-done", P.moment(state.frame).forward >= trace.forwards.length);
    range.value = String(state.frame);
    range.setAttribute("aria-valuetext", says.textContent);
    const play = find("toggle");
    play.textContent = state.playing ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(state.playing));
    find("back").disabled = find("first").disabled = state.frame === 0;
    find("next").disabled = find("end").disabled = state.frame === state.last;
    const { forward, phase } = P.moment(state.frame);
    race.querySelectorAll("rect").forEach((bar) => {
      const place = Number(bar.dataset.forward);
      bar.setAttribute("class", place < forward || (place === forward && phase === 1) ? "past" : place === forward ? "now" : "to-come");
    });
  };

  const act = (action, value) => {
    if (fresh && (action === "play" || action === "toggle")) state = P.reduce(state, "first");
    if (action !== "speed") fresh = false;
    state = P.reduce(state, action, value);
    clearTimeout(timer);
    if (state.playing) timer = setTimeout(function tick() {
      state = P.reduce(state, "tick");
      show();
      if (state.playing) timer = setTimeout(tick, FORWARD_MS / 2 / state.speed);
    }, FORWARD_MS / 2 / state.speed);
    show();
  };

  // Two lanes on the same clock: a bar for each forward, as high as what it committed.
  const drawRace = () => {
    const ns = "http://www.w3.org/2000/svg";
    const count = P.forwards(trace), wide = 1000 / count, gap = Math.min(2, wide * 0.2);
    const most = Math.max(1, ...trace.forwards.map((forward) => forward[3].length));
    const lane = (sizes, top, high) => sizes.map((size, i) => {
      const bar = document.createElementNS(ns, "rect");
      const tall = Math.max(2, high * size / most);
      bar.setAttribute("x", String(i * wide)); bar.setAttribute("width", String(wide - gap));
      bar.setAttribute("y", String(top + high - tall)); bar.setAttribute("height", String(tall));
      bar.dataset.forward = String(i);
      return bar;
    });
    race.replaceChildren(...lane(trace.forwards.map((forward) => forward[3].length), 0, 30),
                         ...lane(trace.plain_ids.map(() => 1), 36, 30));
  };

  const steps = () => {
    const list = find("steps");
    list.replaceChildren(...trace.forwards.map((_, i) => make("li", "", P.describe(trace, 2 * i + 1))));
  };

  // Both panels are as high as their whole text, so that nothing moves while they fill.
  const measure = () => {
    const frame = state.frame;
    own.style.minHeight = plain.style.minHeight = "";
    state = { ...state, frame: state.last };
    show();
    const high = Math.max(own.scrollHeight, plain.scrollHeight);
    own.style.minHeight = plain.style.minHeight = `${Math.min(high + 30, 420)}px`;
    state = { ...state, frame };
    show();
  };

  const choose = (number) => {
    trace = traces[number];
    clearTimeout(timer);
    state = { ...P.start(trace), speed: state.speed };
    fresh = true;
    state.frame = P.telling(trace);
    range.max = String(state.last);
    find("prompt").textContent = (trace.prompt_cut ? "\u2026" : "") + trace.prompt;
    find("strategy").textContent = `WeDLM, ${trace.strategy}${trace.window ? `, ${trace.window} masks` : ""}`;
    find("check").textContent = trace.check;
    find("check").className = trace.same === false ? "check differs" : "check";
    drawRace();
    steps();
    measure();
  };

  for (const action of ["toggle", "back", "next", "first", "end"]) find(action).addEventListener("click", () => act(action));
  range.addEventListener("input", () => act("seek", Number(range.value)));
  find("speed").addEventListener("change", (event) => act("speed", Number(event.target.value)));
  find("rows").addEventListener("change", (event) => choose(Number(event.target.value)));
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const tag = event.target.tagName;
    if (tag === "SELECT" || tag === "SUMMARY" || (tag === "BUTTON" && event.key === " ") || (tag === "INPUT" && event.key !== " ")) return;
    const action = P.actionOf(event.key);
    if (!action) return;
    event.preventDefault();
    act(action);
  });
  race.addEventListener("click", (event) => {
    const box = race.getBoundingClientRect();
    act("seek", 2 * Math.floor(P.forwards(trace) * (event.clientX - box.left) / box.width) + 1);
  });
  addEventListener("resize", measure);
  root.hidden = false;
  // The row that shows most comes first.
  const scores = traces.map((one) => P.richness(one));
  const first = scores.indexOf(Math.max(...scores));
  find("rows").value = String(first);
  choose(first);
})();

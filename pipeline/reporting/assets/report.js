// The theme, and the tips of charts: by pointer, and by arrow keys on a chart that has the focus.
(() => {
  "use strict";
  const root = document.documentElement;
  const stored = { get: () => { try { return localStorage.getItem("wedlm-theme"); } catch { return null; } },
                   set: (value) => { try { localStorage.setItem("wedlm-theme", value); } catch { /* not kept */ } } };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  if (stored.get() === "dark" || stored.get() === "light") root.dataset.theme = stored.get();
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; stored.set(root.dataset.theme); show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();

  const tip = document.getElementById("tip");
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 12, innerWidth - box.width - 6))}px`;
    tip.style.top = `${y - box.height - 12 < 4 ? y + 16 : y - box.height - 12}px`;
  };
  const hide = () => { tip.hidden = true; document.querySelectorAll(".mark.on").forEach((mark) => mark.classList.remove("on")); };
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (!mark) { if (!tip.dataset.keys) hide(); return; }
    delete tip.dataset.keys;
    hide();
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place(event.clientX, event.clientY);
  });
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest ? event.target.closest("svg.plot") : null;
    if (event.key === "Escape") { hide(); return; }
    if (!plot || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    const marks = [...plot.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    event.preventDefault();
    const now = marks.findIndex((mark) => mark.classList.contains("on"));
    const next = { ArrowLeft: now < 0 ? marks.length - 1 : Math.max(0, now - 1), ArrowRight: Math.min(marks.length - 1, now + 1),
                   Home: 0, End: marks.length - 1 }[event.key];
    hide();
    marks[next].classList.add("on");
    tip.textContent = marks[next].dataset.tip;
    tip.hidden = false;
    tip.dataset.keys = "1";
    const box = marks[next].getBoundingClientRect();
    place(box.left + box.width / 2 - 12, box.top);
  });
  document.addEventListener("focusout", (event) => { if (event.target.closest && event.target.closest("svg.plot")) hide(); });
})();

// The table of rows: a heading sorts by its column, once more the other way; a search hides rows without its words.
const wedlmRows = {
  compare: (a, b) => a - b || a.localeCompare(b, undefined, { numeric: true }),
  matches: (text, query) => query.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word)),
};

if (typeof document !== "undefined" && document.getElementById("rows")) {
  const section = document.getElementById("rows"), body = section.querySelector("tbody");
  const headings = [...section.querySelectorAll("th")], search = section.querySelector("input");
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const sign = heading.ariaSort === "ascending" ? -1 : 1;
    for (const other of headings) other.ariaSort = "none";
    heading.ariaSort = sign === 1 ? "ascending" : "descending";
    const cell = (row) => row.cells[column].textContent;
    body.append(...[...body.rows].sort((a, b) => sign * wedlmRows.compare(cell(a), cell(b))));
  }));
  search.addEventListener("input", () => {
    for (const row of body.rows) row.hidden = !wedlmRows.matches(row.textContent, search.value.trim());
  });
  search.hidden = false;
}

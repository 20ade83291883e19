"""The site builds from the repository without a network, every link leads somewhere, and every page is found."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason='the site needs the extra "docs"')

from testing.pages.architecture import FILE, draw, read_diagram
from testing.pages.reference import homes
from testing.repository import ROOT

DRAWING = ROOT / "docs" / "design" / "packages.md"
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""Tags whose address a browser fetches when it shows the page."""


class Page(HTMLParser):
    """Addresses in a page: files that a browser loads, targets of links, and anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADED and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given.get(LOADED[tag], ""))
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(socket.socket, "connect", _refuse)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)  # strict: a warning ends it
    return folder


def _refuse(*_: object) -> None:
    raise OSError("the site is built without a network")


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, Page(path.read_text(encoding="utf-8"))


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    found = {(path.name, address) for path, page in pages(site) for address in page.loads
             if urlsplit(address).scheme not in ("", "data") or address.startswith("//")}  # fmt: skip
    styles = {
        path.name
        for path in site.rglob("*.css")
        if re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text())
    }
    assert not found
    assert not styles


def test_links_lead_to_pages_and_headings_that_are_there(site: Path) -> None:
    known = dict(pages(site))
    broken = [f"{path.relative_to(site)}: {link}" for path, page in known.items() if path.name != "404.html"
              for link in page.links if not leads_somewhere(link, path, known)]  # fmt: skip
    assert len(known) > 30
    assert not broken


def leads_somewhere(link: str, path: Path, known: dict[Path, Page]) -> bool:
    """Whether a link of a page is to another site, a file, or a page with that anchor."""
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in ("https", "mailto")
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in known:
        return target.is_file() and not parts.fragment
    return not parts.fragment or unquote(parts.fragment) in known[target].anchors | {"__top"}


def test_the_search_finds_the_answers_of_benchmarks_and_not_their_tables(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"benchmarks/index.html", "concepts/limits.html"} <= found
    assert not [page for page in found if page.startswith("benchmarks/results/")]


QUESTIONS = {
    "will it be slower than vLLM on my GPU": ("benchmarks/index.html", "concepts/comparison.html"),
    "retry failed rows": ("reference/commands.html",),
    "which columns": ("reference/columns.html",),
    "resume after a kill": ("concepts/faq.html", "concepts/guarantees.html"),
    "json schema": ("guides/structured-output.html",),
    "write to s3": ("concepts/faq.html", "reference/formats.html"),
    "memory of a model on a GPU": ("concepts/faq.html", "guides/gpu.html"),
    "spot instances": ("guides/actors.html",),
    "train my own model": ("concepts/faq.html", "wedlm_core/tiny/index.html"),
    "how long will my job take": ("concepts/faq.html",),
    "exit status": ("reference/commands.html",),
    "out of memory": ("concepts/faq.html",),
    "progress bar in a notebook": ("guides/progress.html",),
}
"""Words that a user types -> pages with the answer."""
_WORKER = """
var answers = [], listeners = [], self = globalThis
self.location = {href: "http://site/"}
self.addEventListener = (type, listener) => listeners.push(listener)
self.postMessage = message => answers.push(message)
self.performance = {now: () => 0}
function importScripts() {}
function URL(address) { this.href = address }
function send(type, data) { answers = []; listeners[0]({data: {type, data}}) }
"""
"""The surroundings of the theme's search worker: a message of type 0 gives the index, one of type 2 is a query."""


def test_questions_of_users_find_the_right_page_among_the_first_three(site: Path) -> None:
    mini_racer = pytest.importorskip("py_mini_racer", reason="runs the search of the site (extra test)")
    (script,) = site.glob("assets/javascripts/workers/search.*.js")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    worker, missed = mini_racer.MiniRacer(), {}
    try:
        worker.eval(_WORKER + script.read_text(encoding="utf-8"))
        worker.eval(f"send(0, {json.dumps(index | {'options': {'suggest': False}})})")
        for question, right in QUESTIONS.items():
            worker.eval(f"send(2, {json.dumps(question)})")
            groups = json.loads(worker.eval("JSON.stringify(answers)"))[0]["data"]["items"]
            first = [group[0]["location"].partition("#")[0] for group in groups[:3]]
            if not set(first) & set(right):
                missed[question] = first
    finally:
        worker.close()
    assert not missed


def test_every_public_name_is_in_the_reference_with_a_text(site: Path) -> None:
    import wedlm_batch

    anchors = {anchor for path, page in pages(site) if path.parent.name == "reference" for anchor in page.anchors}
    assert set(homes(ROOT)) == set(wedlm_batch.__all__)
    for name, module in homes(ROOT).items():
        assert any(anchor.endswith(f".{name}") for anchor in anchors), f"{module}.{name}"
        assert (getattr(wedlm_batch, name).__doc__ or "").strip(), name


def test_no_markup_of_sphinx_is_left_in_the_reference(site: Path) -> None:
    for path in (site / "reference").glob("*.html"):
        assert not re.search(r":(?:class|func|meth|mod|data|attr|exc):", path.read_text(encoding="utf-8")), path.name


def test_the_architecture_is_drawn_from_the_diagram_that_the_imports_are_held_to() -> None:
    diagram = read_diagram(DRAWING.read_text(encoding="utf-8"))
    drawn = FILE.read_text(encoding="utf-8")
    assert set(re.findall(r'data-package="([\w.]+)"', drawn)) == {box.package for box in diagram.boxes}
    assert set(re.findall(r'data-from="([\w.]+)" data-to="([\w.]+)"', drawn)) == set(diagram.arrows)
    assert drawn == draw(diagram), "run: python -m testing.pages.architecture"


def test_the_site_shows_the_drawing_in_place_of_its_source(site: Path) -> None:
    design = (site / "design" / "packages.html").read_text(encoding="utf-8")
    assert "images/architecture.svg" in design
    assert "flowchart TD" not in design
    assert (site / "images" / "architecture.svg").read_bytes() == FILE.read_bytes()

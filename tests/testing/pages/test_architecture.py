"""The drawing of the packages: everything is on it, nothing on top of something else, also a package that is new."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from testing.pages.architecture import PAGE, Box, Diagram, draw, places, read_diagram

DIAGRAM = read_diagram(PAGE.read_text(encoding="utf-8"))


def with_new_packages() -> Diagram:
    new = (Box(package="pipeline.quality", about="evidence"), Box(package="wedlm_core.scores", about="scores"))
    arrows = (("pipeline.commands", "pipeline.quality"), ("wedlm_core.llm", "wedlm_core.scores"))
    return Diagram(boxes=(*DIAGRAM.boxes, *new), arrows=(*DIAGRAM.arrows, *arrows))


def test_no_two_boxes_have_one_place() -> None:
    for diagram in (DIAGRAM, with_new_packages()):
        found = places(diagram)
        assert len(set(found.values())) == len(diagram.boxes)


def test_a_new_package_lies_below_the_one_that_imports_it_on_its_side() -> None:
    found = places(with_new_packages())
    assert found["pipeline.quality"][1] > found["pipeline.commands"][1]
    assert found["pipeline.quality"][0] < 2 <= found["wedlm_core.scores"][0]


def test_every_box_stands_inside_the_paper_with_its_words() -> None:
    for diagram in (DIAGRAM, with_new_packages()):
        root = ET.fromstring(draw(diagram))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        groups = [node for node in root if node.get("data-package")]
        assert [node.get("data-package") for node in groups] == [box.package for box in diagram.boxes]
        for group in groups:
            rectangle = group[0]
            assert 0 <= float(rectangle.get("x", -1)) <= width - float(rectangle.get("width", 0))
            assert 0 <= float(rectangle.get("y", -1)) <= height - float(rectangle.get("height", 0))
            assert group[1].text == group.get("data-package")


def test_it_is_legible_on_dark_pages_too_and_loads_nothing() -> None:
    text = draw(DIAGRAM)
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")

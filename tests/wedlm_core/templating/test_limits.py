"""An untrusted template that exceeds the limits is refused within seconds and in little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import pytest

from pipeline.codec import TemplateLimitError
from pipeline.errors import ConfigError
from pipeline.settings.template import PromptTemplate, check_template
from testing.templates.attacks import ATTACKS
from wedlm_core.templating import LIMITS, ChatTemplate

SECONDS = LIMITS.seconds + 2.5
MEGABYTES = 400
HARMLESS = ("namespaces of namespaces shown",)
"""These are rendered, because the repr of a namespace omits its contents."""


def peak() -> float:
    """The peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def attack(name: str, render: Callable[[], str]) -> None:
    """Assert that rendering is refused soon, in little memory, with a message of one line."""
    before, begin = peak(), time.process_time()
    if name in HARMLESS:
        assert len(render()) <= LIMITS.value_chars
    else:
        with pytest.raises(Exception, match=r"\A.{1,500}\Z") as caught:
            render()
        assert not isinstance(caught.value, MemoryError)
    assert time.process_time() - begin < SECONDS
    assert peak() - before < MEGABYTES


@pytest.mark.sweep(24)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_prompt_template_that_never_ends_or_grows_without_bound_is_refused_soon(name: str) -> None:
    # It names a column, so that it is not rendered when it is checked.
    attack(name, lambda: PromptTemplate(ATTACKS[name] + "{{ a }}").render({"n": 0, "a": "x"}))


# Both kinds of template use the same environment; each of these uses another part of it.
@pytest.mark.parametrize(
    "name",
    ["nested ranges", "recursion over wide levels", "text times a number", "percent width", "format width",
     "method center", "filter center", "filter tojson indent", "text doubled by macros", "lists of lists shown",
     "much output", "deep lists"],
)  # fmt: skip
def test_a_chat_template_that_never_ends_or_grows_without_bound_is_refused_soon(name: str) -> None:
    attack(name, lambda: ChatTemplate(ATTACKS[name]).render([{"role": "user", "content": "x"}], n=0, a="x"))


@pytest.mark.parametrize(
    ("template", "remedy"),
    [("Write about {topic}.", "{{ topic }}"), ("{prompt}", "{{ prompt }}"), ("Hello", "{{ question }}"),
     ("{% set a = 1 %}{{ a }}", "{{ question }}"), ("{ {x} }", "{{ x }}"),
     (ATTACKS["nested ranges"].replace("(n + ", "(0 + "), "{{ question }}")],
)  # fmt: skip
def test_a_template_that_uses_no_column_is_refused_and_never_rendered(template: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt_template=.*: it uses no column") as caught:
        check_template(template)
    assert str(caught.value).endswith(f"Write columns in two braces: {remedy}.")


@pytest.mark.parametrize("cell", ["x" * (LIMITS.value_chars + 1)])
def test_a_cell_that_is_longer_than_any_prompt_is_refused_in_its_row_only(cell: str) -> None:
    template = PromptTemplate("{{ a }}!")
    with pytest.raises(TemplateLimitError, match=f"{len(cell)} characters"):
        template.render({"a": cell})
    assert template.render({"a": "fine"}) == "fine!"


def test_the_limits_leave_room_for_conversations_and_tables_that_are_large() -> None:
    chat = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m['content'] | trim }}"
        "{% if not loop.last %}\n{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": f" {i} " + "word " * 200} for i in range(5000)]
    assert ChatTemplate(chat).render(messages).count("<|user|>") == 5000
    rows = PromptTemplate("{% for e in examples %}{{ e.q }} -> {{ e.a }}\n{% endfor %}{{ q }}")
    examples = [{"q": f"{i} + {i}", "a": 2 * i} for i in range(20_000)]
    assert rows.render({"examples": examples, "q": "1 + 1"}).endswith("19999 + 19999 -> 39998\n1 + 1")


def test_ordinary_templates_give_the_expected_text() -> None:
    cases = {
        "{{ a * 3 }}{{ '-' * 4 }}": "xxx----",
        "{{ '%05.1f|%-4s|%d%%' % (n, a, 7) }}": "002.5|x   |7%",
        "{{ '{:>6.2f}{b[0]}'.format(n, b=['k']) }}": "  2.50k",
        "{{ '%(q)s' | format(q=a) }}": "x",
        "{{ [1, 2, 3] | join(', ') }}{{ ', '.join(['u', 'v']) }}": "1, 2, 3u, v",
        "{{ range(3) | list }}{{ range(3) | map('string') | join }}": "[0, 1, 2]012",
        "{{ a | center(5) }}|{{ 'b\nc' | indent(2) }}": "  x  |b\n  c",
        "{{ 'aXbX'.replace('X', '--') }}{{ 'aXb' | replace('X', '') }}": "a--b--ab",
        "{% for i in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}": "1/2;2/2",
        "{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 7 / 2 }}": "1024333.5",
        "{{ a ~ 1 ~ none }}{{ (1, 2) == (1, 2) }}{{ 1 < 2 <= 2 }}": "x1NoneTrueTrue",
        "{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(a) }}{{ m(m(1)) }}": "<x><<1>>",
        "{% set ns = namespace(k=0) %}{% for i in range(4) %}{% set ns.k = ns.k + i %}{% endfor %}{{ ns.k }}": "6",
        "{{ {'k': a} | tojson }}{{ [1] | tojson(indent=2) }}": '{"k": "x"}[\n  1\n]',
        "{{ {'u': 1}.items() | list }}{{ dict(v=a).v }}": "[('u', 1)]x",
        "{{ 3.14159 | round(2) }}{{ [1, 2.5] | sum }}": "3.143.5",
        "{% for i in [[1, [2]], [3]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}": "123",
        "{{ 'a b c'.split() | last }}{{ 'abc'[1:] }}{{ 'abc'[::-1] }}": "cbccba",
        "{{ ['b', 'a'] | sort | first }}{{ [1, 1, 2] | unique | list }}": "a[1, 2]",
    }
    for template, text in cases.items():
        assert PromptTemplate(template + "{{ z }}").render({"a": "x", "n": 2.5, "z": ""}) == text

"""A template that never ends, or grows without bound, fails its row in a process of its own; other rows go on."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import pipeline
import wedlm_batch as wb
from pipeline.codec import RequestError, TemplateLimitError
from pipeline.errors import ConfigError
from pipeline.prompts import limited_process, rendering, structures
from pipeline.prompts.rendering import render_chat, render_prompt
from pipeline.settings.template import NullCellError, PromptTemplate, check_template
from wedlm_core.templating import MOST_CHARS, ChatTemplate, chat_variables

TIME, MEMORY, TEXT, RANGE = (
    "takes more than 1 s",
    "takes more than 64 MiB of memory",
    "writes more than",
    "Range too big",
)
HOSTILE = {
    "nested ranges": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", TIME),
    "one operation": ("{{ (9**999999) ** 99 }}", TIME),
    "text times a number": ("{{ ('x' * 10**9) | length }}", MEMORY),
    "filter": ("{{ 'a' | center(10**9) }}", MEMORY),
    "much text": ("{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}", TEXT),
    "a long range": ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rendering, "_SECONDS", 1)
    monkeypatch.setattr(rendering, "_BYTES", 64 << 20)
    rendering._process.cache_clear()
    yield
    rendering._process.cache_clear()


def outcome(text: str, **cells: Any) -> str:
    """The text, or the error."""
    try:
        return render_prompt(PromptTemplate(text), cells)
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_fails_its_row_soon_and_costs_this_process_nothing(name: str) -> None:
    text, limit = HOSTILE[name]
    assert outcome("{{ a }}", a="before") == "before"
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = outcome(text + "{{ a }}", a="x")
    assert limit in found
    assert "\n" not in found
    assert time.process_time() - begin < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert outcome("{{ a }}", a="after") == "after"


def test_chat_templates_of_models_have_the_same_limits() -> None:
    for name in ("text times a number", "much text"):
        variables = chat_variables([{"role": "user", "content": "x"}])
        with pytest.raises(TemplateLimitError, match=HOSTILE[name][1]):
            render_chat(ChatTemplate(HOSTILE[name][0]), variables)


def test_no_part_of_a_template_is_evaluated_when_it_is_compiled() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for expression in ("'a' * 10**9", "'a' | center(10**9)", "'%999999999d' % 1", "'a'.center(10**9)", "9**(9**9)"):
        for text in ("{{ %s }}", "{%% if %s %%}{%% endif %%}", "{%% set x = %s %%}"):
            PromptTemplate(text.replace("%s", expression).replace("%%", "%") + "{{ a }}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize(
    "text",
    ["{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "{{ " + "[" * 20000 + "]" * 20000 + " }}",
     "{% if 1 %}" * 20000 + "{% endif %}" * 20000, "{% for i in [1] %}" * 50 + "x" + "{% endfor %}" * 50,
     "{{ " + "9" * 10000 + " }}", "{{ a }}" * 1000000],
    ids=["parentheses", "lists", "conditions", "loops", "a number", "length"],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt_template=.*not a Jinja template"):
        check_template(text + "{{ a }}")


def test_the_text_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert len(outcome("{{ a }}", a="x" * MOST_CHARS)) == MOST_CHARS
    assert f"writes more than {MOST_CHARS} characters" in outcome("{{ a }}!", a="x" * MOST_CHARS)


def test_errors_are_those_of_the_template_and_short() -> None:
    with pytest.raises(NullCellError, match="column 'a' is null"):
        render_prompt(PromptTemplate("{{ a }}"), {"a": None})
    with pytest.raises(ZeroDivisionError):
        render_prompt(PromptTemplate("{{ 1 // a }}"), {"a": 0})
    found = outcome("{{ row['x' * 10**6] }}", a=1)
    assert found.startswith("NullCellError: ")
    assert len(found) < 3_000
    with pytest.raises(RequestError, match=r"prompt_template: the template takes more than 64 MiB of memory. Shorten"):
        render_prompt(PromptTemplate(HOSTILE["filter"][0] + "{{ a }}"), {"a": 1})


def test_a_process_that_others_kill_is_no_fault_of_the_row() -> None:
    template = PromptTemplate("{{ a }}")
    assert render_prompt(template, {"a": "1"}) == "1"
    running = rendering._process()._running
    assert running is not None
    os.kill(running[0].pid, signal.SIGKILL)
    running[0].wait()
    assert render_prompt(template, {"a": "2"}) == "2"


class Unpicklable:
    """A value that a process cannot send to another."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be sent")


class Unreadable:
    """A value that a process cannot read from another."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Fatal:
    """A value that kills the process that reads it."""

    def __init__(self, death: int) -> None:
        self.death = death

    def __reduce__(self) -> Any:
        return signal.raise_signal, (self.death,)


def test_the_message_of_a_row_names_the_true_cause() -> None:
    assert outcome("{{ a }}", a="x") == "x"
    running = rendering._process()._running
    unsendable = outcome("{{ a }}", a=Unpicklable())
    assert unsendable.startswith("'a': a template cannot be given this value (TypeError: cannot be sent). Convert")
    assert outcome("{{ a }}", a=Unreadable()) == "ValueError: invalid literal for int() with base 10: 'no number'"
    assert rendering._process()._running is running, "the process goes on"
    for death, words in ((signal.SIGSEGV, "signal 11, Segmentation fault"), (signal.SIGKILL, "signal 9, Killed")):
        assert f"the template ended its process ({words}), which may have 64 MiB" in outcome("{{ a }}", a=Fatal(death))
    assert outcome("{{ a }}", a="y") == "y"


def test_a_forked_process_has_a_renderer_of_its_own() -> None:
    assert outcome("{{ a }}", a="x") == "x"
    with rendering._process()._lock:  # as where another thread renders
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(0 if outcome("{{ a }}", a="child") == "child" else 1)
    assert {outcome("{{ a }}", a=i) == str(i) for i in range(200)} == {True}
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "settings", [{"prompt_template": "{{ prompt }}"}, {"chat": True}, {"sampling_columns": {"structured_outputs": "f"}}]
)
def test_a_process_that_cannot_be_started_ends_the_job_with_one_error(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"Row {i}", "f": {"choice": [f"{i}"]}} for i in range(3)]
    config = wb.RunConfig(input=rows, output="none", model="tiny", **settings)
    start = Mock(wraps=limited_process.start_child)
    monkeypatch.setattr(limited_process, "start_child", start)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(limited_process, "_PAUSES_SECONDS", (0.0, 0.0))
    structures._compiler.cache_clear()
    with pytest.raises(pipeline.ResourceError, match=r"cannot be started \(exit code 1\). Check that /bin/false runs"):
        wb.preview(config, rows=3)
    assert start.call_count == 3, "not for each row"


def test_a_process_that_starts_at_another_attempt_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    real, start = limited_process.start_child, Mock(side_effect=OSError("no memory"))
    monkeypatch.setattr(limited_process, "start_child", start)

    def free_memory(seconds: float) -> None:
        start.side_effect = real

    monkeypatch.setattr(limited_process.time, "sleep", free_memory)
    assert outcome("{{ a }}", a="x") == "x"
    assert start.call_count == 2


INTERVAL = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())


@pytest.mark.parametrize(
    ("column", "cause"),
    [
        (INTERVAL, "'c': a template cannot be given this value (PicklingError: "),
        (pa.ListArray.from_arrays([0, 1, 1], INTERVAL), "'c': a template cannot be given this value (PicklingError: "),
        (pa.array([2**62, 0], pa.timestamp("us")), "'c': the cell has no value in Python (date value out of range)"),
        (pa.array([0, None], pa.timestamp("s", "Foo/Bar")), "'c': the cell has no value in Python ('Foo/Bar')"),
        (pa.array([b"\xff", b"x"]).cast(pa.string(), safe=False), "'c': not valid UTF-8 text"),
    ],
)  # fmt: skip
def test_a_cell_that_no_template_can_be_given_fails_its_row_with_the_cause(
    column: pa.Array, cause: str, tmp_path: Path
) -> None:
    table = pa.table({"c": column})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as file:
        file.write_table(table)
    config = wb.RunConfig(
        input=str(tmp_path / "in.arrow"), output="none", model="tiny", prompt_template="{{ c | default('') }} is what?",
        columns=[], sampling=wb.SamplingParams(max_tokens=1),
    )  # fmt: skip
    first, second = (row["error"] for row in wb.preview(config, rows=2).to_pylist())
    assert cause in first
    assert second is None


@pytest.mark.parametrize(
    ("template", "remedy"),
    [("Write about {topic}.", "{{ topic }}"), ("{prompt}", "{{ prompt }}"), ("Hello", "{{ question }}"),
     ("{% set a = 1 %}{{ a }}", "{{ question }}"), ("{ {x} }", "{{ x }}"),
     (HOSTILE["nested ranges"][0], "{{ question }}")],
)  # fmt: skip
def test_a_template_that_uses_no_column_is_refused_and_never_rendered(template: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt_template=.*: it uses no column") as caught:
        check_template(template)
    assert str(caught.value).endswith(f"Write columns in two braces: {remedy}.")


def test_the_limits_leave_room_for_conversations_and_tables_that_are_large() -> None:
    chat = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m['content'] | trim }}"
        "{% if not loop.last %}\n{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": f" {i} " + "word " * 200} for i in range(5000)]
    assert render_chat(ChatTemplate(chat), chat_variables(messages)).count("<|user|>") == 5000
    examples = [{"q": f"{i} + {i}", "a": 2 * i} for i in range(20_000)]
    text = outcome("{% for e in examples %}{{ e.q }} -> {{ e.a }}\n{% endfor %}{{ q }}", examples=examples, q="1 + 1")
    assert text.endswith("19999 + 19999 -> 39998\n1 + 1")


def test_ordinary_templates_give_the_expected_text() -> None:
    cases = {
        "{{ a * 3 }}{{ '-' * 4 }}": "xxx----",
        "{{ '%05.1f|%-4s|%d%%' % (n, a, 7) }}": "002.5|x   |7%",
        "{{ '{:>6.2f}{b[0]}'.format(n, b=['k']) }}": "  2.50k",
        "{{ [1, 2, 3] | join(', ') }}{{ ', '.join(['u', 'v']) }}": "1, 2, 3u, v",
        "{{ a | center(5) }}|{{ 'b\nc' | indent(2) }}": "  x  |b\n  c",
        "{% for i in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}": "1/2;2/2",
        "{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 7 / 2 }}": "1024333.5",
        "{{ a ~ 1 ~ none }}{{ (1, 2) == (1, 2) }}{{ 1 < 2 <= 2 }}": "x1NoneTrueTrue",
        "{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(a) }}{{ m(m(1)) }}": "<x><<1>>",
        "{% set ns = namespace(k=0) %}{% for i in range(4) %}{% set ns.k = ns.k + i %}{% endfor %}{{ ns.k }}": "6",
        "{{ {'k': a} | tojson }}{{ [1] | tojson(indent=2) }}": '{"k": "x"}[\n  1\n]',
        "{{ dict(v=a).v }}{{ 3.14159 | round(2) }}{{ [1, 2.5] | sum }}": "x3.143.5",
        "{% for i in [[1, [2]], [3]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}": "123",
        "{{ ['b', 'a'] | sort | first }}{{ 'abc'[::-1] }}": "acba",
    }
    for template, text in cases.items():
        assert outcome(template + "{{ z }}", a="x", n=2.5, z="") == text
    assert "'__class__' of 'str' object is unsafe" in outcome("{{ a.__class__ }}", a="x")

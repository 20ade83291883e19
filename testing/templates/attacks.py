# ruff: noqa: E501
"""Templates that would run for hours or use all memory, each in a different way."""

from __future__ import annotations

__all__ = ["ATTACKS"]

BIG = "{% set b = 'ab' * 4000000 %}"
DOUBLED = "{% set ns = namespace(v=['x']) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"

ATTACKS: dict[str, str] = {
    # loops and recursion
    "range of 10**9": "{% for i in range(10**9) %}x{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested ranges that ask for their last": "{% for i in range(99999) %}{% for j in range(99999) %}{{ loop.last }}"
    "{% endfor %}{{ loop.length }}{% endfor %}",
    "nested ranges with a condition": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "loop that calls itself": "{% for i in range(99999) recursive %}{% if i < 90000 %}{{ loop(range(99999)) }}{% endif %}"
    "{% endfor %}",
    "recursion over wide levels": "{% for i in [1] recursive %}{{ loop(range(99999)) if loop.depth < 3 }}{% endfor %}",
    "macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(80) }}",
    "macro that calls itself for ever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "block that calls itself twice": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "filters over ranges": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "selected ranges": "{% for i in range(99999) %}{{ range(99999) | select('odd') | list | length }}{% endfor %}",
    "sums of ranges": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    # one operation
    "text times a number": "{{ 'a' * 10**9 }}",
    "number times text": "{{ 10**9 * 'a' }}",
    "list times a number": "{{ ([0] * 10**9) | length }}",
    "tuple times a number": "{{ ((0,) * 10**9) | length }}",
    "bytes times a number": "{{ ('a'.encode() * 10**9) | length }}",
    "tower of powers": "{{ 9**(9**9) }}",
    "power of a column": "{{ (n + 9)**((n + 9)**(n + 9)) }}",
    "squares of squares": "{% set ns = namespace(v=10) %}{% for i in range(60) %}{% set ns.v = ns.v * ns.v %}{% endfor %}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent width behind a key": "{{ '%(a)999999999d' % {'a': 1} }}",
    "percent width behind a nested key": "{{ '%((a))999999999d' % {'(a)': 1} }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1 }}",
    "percent keys": BIG + "{{ ('%(a)s' * 100000) % {'a': b} }}",
    "percent bytes": "{{ ('%999999999d'.encode() % 1) | length }}",
    "format width": "{{ '{:999999999d}'.format(1) }}",
    "format width from an argument": "{{ '{:{}}'.format(1, 999999999) }}",
    "format_map width": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "format precision": "{{ '{:.999999999f}'.format(1.5) }}",
    "format fields": BIG + "{{ ('{0}' * 100000).format(b) }}",
    "method center": "{{ 'a'.center(10**9) }}",
    "method ljust": "{{ 'a'.ljust(10**9) }}",
    "method rjust": "{{ 'a'.rjust(10**9) | length }}",
    "method zfill": "{{ 'a'.zfill(10**9) }}",
    "method expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "method replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "method replace of nothing": "{{ ('a' * 1000000).replace('', 'b' * 1000000) | length }}",
    "method join": "{{ ('a' * 1000000).join('b' * 1000000) | length }}",
    "method translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) | length }}",
    "method by attr": "{{ ('a' | attr('center'))(10**9) }}",
    "method by item": "{{ 'a'['center'](10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') | length }}",
    "from_bytes": BIG + "{{ (1).from_bytes(b.encode(), 'big') ** 2 }}",
    "fromkeys": BIG + "{{ dict.fromkeys(range(99999), b) }}",
    # filters
    "filter center": "{{ 'a' | center(10**9) }}",
    "filter center by map": "{{ ['a'] | map('center', 10**9) | list }}",
    "filter indent": "{{ 'a\nb' | indent(10**9) }}",
    "filter indent of lines": "{{ ('a\n' * 1000000) | indent(1000000) | length }}",
    "filter indent by text": "{{ ('a\n' * 1000000) | indent('b' * 1000000) | length }}",
    "filter format": "{{ '%999999999d' | format(1) }}",
    "filter replace": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) | length }}",
    "filter join": "{{ range(99999) | join('a' * 1000000) | length }}",
    "filter join of huge ranges": "{{ range(10**9) | join(',') }}",
    "filter wordwrap": "{{ ('a' * 4000000) | wordwrap(1) | length }}",
    "filter wordwrap by text": "{{ ('a ' * 10000) | wordwrap(1, wrapstring='b' * 1000000) | length }}",
    "filter striptags": "{{ ('<!---->' * 1000000) | striptags | length }}",
    "filter urlize": "{{ ('www.a.b ' * 1000000) | urlize | length }}",
    "filter xmlattr": BIG + "{{ {'a': b, 'c': b} | xmlattr | length }}",
    "filter batch": "{{ [1] | batch(10**9, 'x') | list | length }}",
    "filter slice": "{{ [1] | slice(10**9) | list | length }}",
    "filter round": "{{ 5 | round(-999999999) }}",
    "filter round up": "{{ 5 | round(999999999, 'ceil') }}",
    "filter sum of lists": "{% set ns = namespace(v=[]) %}{% for i in range(20) %}{% set ns.v = ns.v + ns.v + [[i]] %}"
    "{% endfor %}{{ ns.v | sum(start=[]) | length }}",
    "filter tojson indent": "{{ [[1]] | tojson(indent=10**9) }}",
    "filter list of text": BIG + "{% for i in range(1000) %}{{ b | list | length }}{% endfor %}",
    "filter pprint": DOUBLED + "{{ ns.v | pprint }}",
    "filter map default": BIG + "{{ range(99999) | map(attribute='no', default=b) | list }}",
    "filter truncate": BIG + "{% for i in range(99999) %}{{ b | truncate(9) }}{% endfor %}",
    "filter int": BIG + "{{ ('9a' * 2000000) | int(base=16) }}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "lipsum of long paragraphs": "{{ lipsum(n=1, min=10**8, max=10**9) }}",
    # growth by small steps
    "text doubled": "{% set ns = namespace(v='x') %}{% for i in range(60) %}{% set ns.v = ns.v ~ ns.v %}{% endfor %}{{ ns.v }}",
    "text doubled by plus": "{% set ns = namespace(v='x') %}{% for i in range(60) %}{% set ns.v = ns.v + ns.v %}{% endfor %}{{ ns.v }}",
    "text doubled by set blocks": "{% set ns = namespace(v='x') %}{% for i in range(60) %}{% set ns.v %}{{ ns.v }}{{ ns.v }}"
    "{% endset %}{% endfor %}",
    "text doubled by macros": "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% set ns = namespace(v='x') %}"
    "{% for i in range(60) %}{% set ns.v = m(ns.v) %}{% endfor %}",
    "lists of lists compared": DOUBLED.replace("namespace(v=['x'])", "namespace(v=['x'], w=['x'])").replace(
        "{% endfor %}", "{% set ns.w = [ns.w, ns.w] %}{% endfor %}") + "{{ ns.v == ns.w }}",
    "lists of lists shown": DOUBLED + "{{ ns.v }}",
    "lists of lists as JSON": DOUBLED + "{{ ns.v | tojson }}",
    "tuples of tuples hashed": DOUBLED.replace("[ns.v, ns.v]", "(ns.v, ns.v)").replace("['x']", "('x',)")
    + "{{ {ns.v: 1} | length }}",
    "mappings of mappings shown": DOUBLED.replace("[ns.v, ns.v]", "{'a': ns.v, 'b': ns.v}") + "{{ ns.v }}",
    "namespaces of namespaces shown": "{% set ns = namespace(v=namespace(a=1)) %}{% for i in range(60) %}"
    "{% set ns.v = namespace(a=ns.v, b=ns.v) %}{% endfor %}{{ ns.v }}",
    "dicts of dicts shown": "{% set ns = namespace(v=dict(a=1)) %}{% for i in range(60) %}"
    "{% set ns.v = dict(a=ns.v, b=ns.v) %}{% endfor %}{{ ns.v }}",
    "much kept": BIG + "{% set ns = namespace(v=[]) %}{% for i in range(9999) %}{% set ns.v = ns.v + [b ~ i] %}{% endfor %}",
    "much kept in output": BIG + "{% set x %}{% for i in range(9999) %}{{ [b, i] }}{% endfor %}{% endset %}",
    "much output": BIG + "{% for i in range(9999) %}{{ b }}{% endfor %}",
    "much output of literals": "{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}",
    "long compares": BIG + "{% set c = 'ab' * 4000000 %}{% for i in range(99999) %}{{ b == c }}{{ b in c }}{% endfor %}",
    "long slices": BIG + "{% for i in range(99999) %}{% set x = b[1:] %}{% endfor %}",
    # what cannot be compiled
    "deep parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "deep lists": "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "long sums": "{{ " + "1+" * 50000 + "1 }}",
    "deep conditions": "{% if 1 %}" * 20000 + "{% endif %}" * 20000,
    "deep loops": "{% for i in [1] %}" * 50 + "x" + "{% endfor %}" * 50,
    "long number": "{{ " + "9" * 10000 + " }}",
    "long source": "{{ a }}" * 1000000,
}  # fmt: skip

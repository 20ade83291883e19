# ruff: noqa: E501
"""Chat templates like those of common model families, and conversations to render."""

from __future__ import annotations

from typing import Any

TEMPLATES: dict[str, str] = {
    "turns between markers": """{% for message in messages %}
{{ '<|begin|>' + message['role'] + '\\n' + message['content'] + '<|end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}
""",
    "headers and a first token": """{{- bos_token }}
{%- if tools is not none and tools %}{{- 'Tools: ' + tools | map(attribute='function.name') | join(', ') + '\\n' }}{% endif %}
{%- set loop_messages = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|head|>system<|/head|>\\n\\n' ~ system ~ '<|eot|>' }}
{%- for message in loop_messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot|>' }}
    {%- else %}
        {{- message.content | tojson(ensure_ascii=True) if message.content is mapping else message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}""",
    "tools in the system turn, reasoning cut from the past": """{%- if tools %}
    {{- '<|begin|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|begin|>system\\n' + messages[0].content + '<|end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|begin|>' ~ message.role ~ '\\n' ~ message.content ~ '<|end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if message.reasoning_content is defined %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set reasoning = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|begin|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}{{- '<think>\\n' ~ reasoning ~ '\\n</think>\\n' }}{% endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<call>' + ({'name': call.name, 'arguments': call.arguments} | tojson(indent=2)) + '</call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|begin|>user' }}{%- endif %}
        {{- '\\n<result>\\n' + message.content + '\\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n' }}{%- endif %}""",
    "instructions in brackets, turns that alternate": """{{ bos_token }}{% for message in messages %}
{% if loop.index0 == 0 and message['role'] == 'system' %}{% continue %}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{% generation %} {{ message['content'] }}{{ eos_token }}{% endgeneration %}
{% elif message['role'] == 'tool' %}{{ '[RESULT] %s' % message['content'] }}
{% else %}{{ raise_exception('no such role: ' + message['role']) }}{% endif %}{% endfor %}
""",
    "macros, dates and blocks": """{% macro turn(role, text) -%}
<start_of_turn>{{ role }}
{{ text | trim | replace('\\r', '') }}<end_of_turn>
{% endmacro %}
{% set year = strftime_now('%Y') | int %}{{ 'new' if year > 2020 else 'old' }}
{% for m in messages %}{% set role = {'assistant': 'model'}.get(m.role, m.role) %}{{ turn(role, m.content) }}{% endfor %}
{% if tools is defined and tools %}{% set shown %}{% for t in tools %}{{ t.function | tojson(separators=(',', ':'), sort_keys=true) }};{% endfor %}{% endset %}{{ shown | indent(2, true) }}{% endif %}
{{ "%-8s|%03d" | format('a', messages | length) }}{{ '{:>6}'.format(messages | selectattr('role', 'equalto', 'user') | list | count) }}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
    "letters in Unicode and nothing else": "{{ messages | map(attribute='content') | join('\\u2028') }}<|\uff5cend|>",
}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Tells <the> weather & "more" - für Zürich\'s lake',
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]

_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2.5, None]}}}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": " How are you?\n"}],
    "system, question, answer, question": [
        {"role": "system", "content": "Be <b>brief</b> & kind."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "<think>\nIt is easy.\n</think>\n\n4", "name": None},
        {"role": "user", "content": "Danke schön 🙂"},
    ],
    "a tool is called": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": '{"sun": true}', "name": "weather"},
        {"role": "tool", "content": "twice"},
    ],
    "reasoning of its own": [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because.", "thinking": "Hm."},
    ],
    "a role that is unknown": [{"role": "user", "content": "a"}, {"role": "oracle", "content": "b"}],
}

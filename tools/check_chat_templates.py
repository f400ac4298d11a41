#!/usr/bin/env python3
"""Compares Cairn's chat templates with Jinja2 as transformers sets it up: the same text, byte for byte, and the same assistant parts.

    python3 -m venv build/peers && build/peers/bin/pip install jinja2 transformers
    ninja -C build/release render_chat
    build/peers/bin/python tools/check_chat_templates.py [--renderer PROGRAM] [--expressions N] [--seed N] [--template FILE]...

Templates have the structure of those of Llama 3, Qwen2.5, Mistral, ChatML, Zephyr, Phi-3 and Gemma, written anew; FILE adds a
chat_template.jinja or a tokenizer_config.json. Expressions and whitespace are made up. Where the reference refuses, Cairn must refuse too.
Ends with 0 only if all are equal.
"""
import argparse
import json
import random
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

CHATML_MARKED = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{{ '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first, so it is taken out here. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

MACROS = """{%- macro type_of(p, deep=false) %}
  {%- if p.type == 'array' %}list[{{ type_of(p['items'] if 'items' in p else {}, deep=true) }}]
  {%- elif p.type is string %}{{ p.type | replace('string', 'str') }}
  {%- else %}Any{% endif %}
  {%- if deep %}*{% endif %}
{%- endmacro %}
{%- macro box(title) -%}
<{{ title }}>{{ caller() }}</{{ title }}>
{%- endmacro %}
{%- for tool in tools or [] %}
{%- call box('tool') %}
def {{ tool.function.name }}({% for name, p in tool.function.parameters.properties.items() %}{{ name }}: {{ type_of(p) }}{{ ", " if not loop.last }}{% endfor %})
{% endcall %}
{%- else %}no tools
{%- endfor %}
{% for m in messages if m.role != 'system' -%}
  {{ loop.index }}/{{ loop.length }} {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ m.role | upper }}: {{ m.content | default('', true) | string | indent(2) }}
  {%- set counted %}[{{ m | length }}]{% endset %}{{ counted }}
  {%- if loop.index > 3 %}{% break %}{% endif %}
{% endfor %}
{% raw %}{{ not a tag }}{% endraw %}
   {% if true %}
   indented
   {%+ if true %}kept{% endif +%}
   {% endif %}
{{ messages | map(attribute='role') | unique | list }} {{ dict(a=1, b='x') }} {{ messages | tojson }}
"""

TEMPLATES = {"chatml": CHATML, "chatml, marked": CHATML_MARKED, "zephyr": ZEPHYR, "llama 2": LLAMA2, "llama 3": LLAMA3, "llama 3.1": LLAMA31,
             "qwen 2.5": QWEN25, "qwen 3": QWEN3, "mistral": MISTRAL, "phi 3": PHI3, "gemma": GEMMA, "gemma 3": GEMMA3, "macros": MACROS}

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"place\" <now>", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "enum": ["Köln", "São Paulo"]}, "days": {"type": "array", "items": {"type": "integer"}},
                                     "exact": {"type": ["boolean", "null"], "default": None, "scale": 0.1}}, "required": ["place"]}}}]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": "1"}}}


def conversations(rng):
    texts = ["Hi", "  spaces around \n", "two\nlines\n\n", "quote ' and \" & <b>", "Grüße, 世界 🙂", "<think>\nhm\n</think>\n\nyes", "{{ not }} {% code %}", "\ttab", "a" * 300]
    user = lambda: {"role": "user", "content": rng.choice(texts)}
    answer = lambda: {"role": "assistant", "content": rng.choice(texts)}
    system = lambda: {"role": "system", "content": rng.choice(texts)}
    yield [user()]
    yield [user(), answer()]
    yield [system(), user(), answer(), user()]
    yield [system(), user(), answer(), user(), answer()]
    yield [user(), answer(), user(), answer(), user(), answer()]
    yield [user(), {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "{\"t\": 3}"}, answer()]
    yield [user(), {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": {"t": [3, 4.5]}}, answer(), user()]
    yield [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " look "}]}, answer()]
    yield [answer(), user()]
    yield []


VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "n": 7, "half": 0.5, "neg": -3, "word": "hello World-wide (web)", "wide": " Ünïcode  日本 \n",
             "names": ["b", "A", "c", "a"], "numbers": [3, 1, 2, 2], "nested": {"b": [1, {"c": None}], "a": "x", "z": True}, "empty": [], "nothing": None, "yes": True}


class Expressions:
    """Expressions made up of what the interpreter knows; many of them are refused, and then both must refuse."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return self.rng.choice(choices)

    def text(self, depth):
        if depth <= 0 or self.rng.random() < 0.25:
            return self.pick("word", "wide", "'a,b,,c'", "'x\\ny'", "\"it's\"", "''", "bos_token", "'abcabc'", "'42'", "' 3.75 '", "nested.a", "'é\\u00fc\\x41\\t'")
        t, i = lambda: self.text(depth - 1), lambda: self.integer(depth - 1)
        return self.pick(
            lambda: f"({t()} + {t()})", lambda: f"({t()} ~ {self.any(depth - 1)})", lambda: f"({t()} | {self.pick('trim', 'upper', 'lower', 'title', 'capitalize', 'string', 'safe', 'first', 'last', 'reverse')})",
            lambda: f"({t()}).{self.pick('strip', 'lstrip', 'rstrip', 'upper', 'lower', 'title', 'capitalize')}()", lambda: f"({t()}).strip({self.pick(chr(39) + 'ab ' + chr(39), chr(39) + 'x' + chr(39))})",
            lambda: f"({t()}).replace({t()}, {t()})", lambda: f"({t()} | replace({t()}, 'R', {self.pick('1', '2', 'none')}))", lambda: f"({t()})[{i()}]", lambda: f"({t()})[{self.slice()}]",
            lambda: f"({self.list(depth - 1)} | join({self.pick(chr(39) + ', ' + chr(39), chr(39) * 2, '0')}))", lambda: f"({t()}).join({t()}.split())", lambda: f"({self.any(depth - 1)} | tojson{self.pick('', '(indent=2)', '(sort_keys=true)', '(separators=(chr, chr))'.replace('chr, chr', chr(39) + ',' + chr(39) + ', ' + chr(39) + ':' + chr(39)), '(ensure_ascii=true)')})",
            lambda: f"({t()} | indent({self.pick('', '2', 'width=3, first=true', '1, blank=true')}))", lambda: f"({t()} * {self.pick('0', '2', '-1')})", lambda: f"({t()} | default({t()}, true))", lambda: f"({t()} if {self.truth(depth - 1)} else {t()})",
            lambda: f"({t()}).{self.pick('removeprefix', 'removesuffix')}({t()})", lambda: f"(missing | default({t()}))")()

    def slice(self):
        part = lambda: self.pick("", "0", "1", "-1", "2", "-2", "5", "-9")
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('', '1', '-1', '2', '-2')}")

    def integer(self, depth):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick("0", "1", "2", "-1", "n", "neg", "1_000", "numbers[0]", "true")
        i = lambda: self.integer(depth - 1)
        return self.pick(lambda: f"({i()} {self.pick('+', '-', '*', '//', '%')} {i()})", lambda: f"({self.any(depth - 1)} | length)", lambda: f"-{i()}", lambda: f"({self.text(depth - 1)} | int({self.pick('', '5', 'default=2')}))",
                         lambda: f"({i()} ** {self.pick('0', '1', '2', '3')})", lambda: f"(numbers | sum)", lambda: f"({i()} | abs)", lambda: f"({self.text(depth - 1)}).{self.pick('find', 'count')}({self.text(0)})",
                         lambda: f"(7.9 | int)", lambda: f"({i()} | default(3))")()

    def number(self, depth):
        return self.pick(lambda: self.integer(depth), lambda: f"({self.integer(depth)} / {self.integer(depth)})", lambda: f"({self.pick('half', '1.5', '2.25e3', '1e22', '1e-7', '123456789.125')} {self.pick('+', '-', '*', '/', '//', '%')} {self.integer(depth)})",
                         lambda: f"({self.text(depth)} | float)", lambda: f"({self.pick('2.5', '3.14159', '-0.5', '7')} | round{self.pick('', '(1)', '(2, ' + chr(39) + 'floor' + chr(39) + ')')})")()

    def list(self, depth):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick("names", "numbers", "empty", "[1, 'a', none]", "('a', 2)", "[]", "nested.b", "['x'] * 2", "(1,)", "[[1, 2], [3]]")
        l = lambda: self.list(depth - 1)
        return self.pick(lambda: f"({l()} + {l()})", lambda: f"({l()})[{self.slice()}]", lambda: f"({l()} | list)", lambda: f"({self.text(depth - 1)}).split({self.pick('', chr(39) + ',' + chr(39), chr(39) + 'a' + chr(39) + ', 1')})", lambda: f"({self.text(depth - 1)}).rsplit({self.pick('none, 1', chr(39) + 'b' + chr(39) + ', 1')})",
                         lambda: f"({l()} | map('string') | list)", lambda: f"({l()} | select({self.pick('', chr(39) + 'string' + chr(39), chr(39) + 'equalto' + chr(39) + ', 2')}) | list)", lambda: f"({l()} | sort{self.pick('', '(reverse=true)', '(case_sensitive=true)')})",
                         lambda: f"({l()} | reverse | list)", lambda: f"({l()} | unique | list)", lambda: f"(nested | dictsort{self.pick('', '(reverse=true)')})", lambda: f"range({self.pick('3', '1, 4', '5, 0, -2')}) | list", lambda: "(nested.items() | list)", lambda: "(nested | items | list)",
                         lambda: f"([nested, {{'a': 'y'}}] | selectattr('a', {self.pick(chr(39) + 'defined' + chr(39), chr(39) + '==' + chr(39) + ', ' + chr(39) + 'x' + chr(39))}) | map(attribute='a') | list)", lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
                         lambda: f"({self.text(depth - 1)}).splitlines()", lambda: f"({self.text(depth - 1)} | list)")()

    def truth(self, depth):
        a = lambda: self.any(depth - 1)
        return self.pick(lambda: f"({self.number(depth - 1)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.number(depth - 1)})", lambda: f"({a()} {self.pick('==', '!=')} {a()})", lambda: f"(not {a()})", lambda: f"({a()} {self.pick('and', 'or')} {a()})",
                         lambda: f"({self.text(depth - 1)} {self.pick('in', 'not in')} {self.pick(self.text(depth - 1), self.list(depth - 1), 'nested')})", lambda: f"({a()} is {self.pick('', 'not ')}{self.pick('defined', 'undefined', 'none', 'string', 'number', 'mapping', 'iterable', 'sequence', 'boolean', 'true', 'false', 'integer', 'float')})",
                         lambda: f"({self.integer(depth - 1)} is {self.pick('even', 'odd', 'divisibleby 2', 'equalto 2', 'in [1, 2]')})", lambda: f"({self.text(depth - 1)}).{self.pick('startswith', 'endswith')}({self.pick(self.text(0), '(' + chr(39) + 'a' + chr(39) + ', ' + chr(39) + 'h' + chr(39) + ')')})",
                         lambda: f"(1 < {self.integer(depth - 1)} < 5)", lambda: f"({self.text(depth - 1)} < {self.text(depth - 1)})", lambda: f"({self.text(depth - 1)} is {self.pick('lower', 'upper')})", lambda: f"({self.text(depth - 1)}).{self.pick('isspace', 'isdigit', 'isalpha')}()")()

    def any(self, depth):
        if depth <= 0:
            return self.pick("n", "word", "names", "nested", "nothing", "missing", "half", "yes", "''", "{}", "nested.missing", "{'k': [1, 2], 3: none}")
        return self.pick(self.text, self.number, self.list, self.truth, self.text)(depth)

    def template(self):
        gap = lambda: self.pick("", " ", "\n", "\n\n  ", " \t", "x", " y\n")
        mark = lambda: self.pick("", "", "-", "+")
        minus = lambda: self.pick("", "", "-")
        output = lambda: f"{{{{{minus()} {self.any(3)} {minus()}}}}}"
        return self.pick(
            lambda: f"{{{{ {self.any(3)} }}}}", lambda: f"{{{{ {self.any(3)} }}}}", lambda: gap() + output() + gap() + f"{{#{mark()} note {mark()}#}}" + gap() + output() + gap(),
            lambda: f"{gap()}{{%{mark()} if {self.truth(2)} {mark()}%}}{gap()}yes{gap()}{{%{mark()} else {mark()}%}}{gap()}no{gap()}{{%{mark()} endif {mark()}%}}{gap()}end",
            lambda: f"{gap()}{{%{mark()} for item in {self.list(2)} {mark()}%}}{gap()}{{{{{minus()} item }}}}:{{{{ loop.index }}}}{gap()}{{%{mark()} else {mark()}%}}none{{%{mark()} endfor {mark()}%}}{gap()}",
            lambda: f"{{% set x = {self.any(2)} %}}{gap()}{{%{mark()} set y {mark()}%}}{gap()}{{{{ x }}}}{gap()}{{%{mark()} endset {mark()}%}}[{{{{ y }}}}]",
            lambda: f"{{% set ns = namespace(a={self.any(1)}) %}}{{% for i in [1, 2] %}}{{% set ns.a = ns.a ~ {self.any(1)} %}}{{% endfor %}}{{{{ ns.a }}}}")()


def reference(case):
    try:
        compiled = _compile_jinja_template(case["template"])
        text, ranges = _render_with_assistant_indices(compiled, case["messages"], case["tools"], None, case["add_generation_prompt"], **case["variables"])
        return text, ranges
    except Exception as error:  # whatever it is, it is a refusal
        return None, f"{type(error).__name__}: {error}"


def to_bytes(text, ranges):
    place = lambda at: len(text[:at].encode())
    return [[place(first), place(end)] for first, end in ranges if first < end]


def cases(arguments):
    rng = random.Random(arguments.seed)
    named = dict(TEMPLATES)
    for path in arguments.template:
        text = open(path, encoding="utf-8").read()
        named[path] = json.loads(text)["chat_template"] if path.endswith(".json") else text
    for name, template in named.items():
        for messages in conversations(rng):
            for tools in (None, TOOLS):
                for prompt in (False, True):
                    yield {"name": name, "template": template, "messages": messages, "tools": tools, "add_generation_prompt": prompt,
                           "variables": {"bos_token": "<s>", "eos_token": "</s>"}, "targets": "{% generation" in template}
    made = Expressions(rng)
    for _ in range(arguments.expressions):
        yield {"name": "made up", "template": made.template(), "messages": [], "tools": None, "add_generation_prompt": False, "variables": VARIABLES, "targets": False}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--renderer", default="build/release/render_chat")
    parser.add_argument("--expressions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--template", action="append", default=[])
    parser.add_argument("--show", type=int, default=10)
    arguments = parser.parse_args()
    everything = list(cases(arguments))
    lines = "".join(json.dumps(case) + "\n" for case in everything)
    answers = subprocess.run([arguments.renderer], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")[:-1]
    assert len(answers) == len(everything), "the renderer stopped early"
    counts, wrong = {}, 0
    for case, line in zip(everything, answers):
        ours = json.loads(line)
        text, ranges = reference(case)
        same = ("error" in ours) if text is None else ours.get("text") == text and ("targets" not in ours or ours["targets"] == to_bytes(text, ranges))
        kind = "differs" if not same else "refused by both" if text is None else "equal"
        counts.setdefault(case["name"], {}).setdefault(kind, 0)
        counts[case["name"]][kind] += 1
        if not same:
            wrong += 1
            if wrong <= arguments.show:
                print(f"--- {case['name']}\n{case['template'][:600] if case['name'] == 'made up' else json.dumps(case['messages'])}\n  reference: {text!r} {ranges if text is None else ''}\n  Cairn:     {ours}")
    for name, found in counts.items():
        print(f"{name:16}", ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

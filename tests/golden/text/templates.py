#!/usr/bin/env python3
"""Makes templates.json: chat template constructs, rendered by jinja2 as transformers sets it up.

    python3 -m venv V && V/bin/pip install jinja2
    V/bin/python tests/golden/text/templates.py
"""
import datetime, json, os
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
import jinja2

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class Refused(Exception):
    pass


class Generation(Extension):
    tags = {'generation'}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], []).set_lineno(line)


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters['tojson'] = tojson
ENV.globals['raise_exception'] = raise_exception
ENV.globals['strftime_now'] = lambda f: NOW.strftime(f)

MESSAGES = [
    {'role': 'system', 'content': ' You are kind. '},
    {'role': 'user', 'content': 'Hi "there" <b> & é 漢 \n\ttab\\'},
    {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nHello', 'reasoning_content': 'hm'},
    {'role': 'user', 'content': [{'type': 'text', 'text': 'part one'}, {'type': 'text', 'text': 'part two'}]},
    {'role': 'assistant', 'content': None, 'tool_calls': [
        {'id': 'c1', 'type': 'function', 'function': {'name': 'get_weather', 'arguments': {'city': 'Köln', 'days': 3, 'deep': {'a': [1, 2.5, None, True]}}}},
        {'id': 'c2', 'type': 'function', 'function': {'name': 'now', 'arguments': {}}}]},
    {'role': 'tool', 'tool_call_id': 'c1', 'name': 'get_weather', 'content': '{"t": 21.5}'},
]
TOOLS = [{'type': 'function', 'function': {'name': 'get_weather', 'description': 'Weather "now"', 'parameters': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer', 'enum': [1, 2, 3]}}, 'required': ['city']}}}]
VARS = {'messages': MESSAGES, 'tools': TOOLS, 'add_generation_prompt': True, 'bos_token': '<s>', 'eos_token': '</s>', 'empty': [], 'nothing': None,
        'word': 'Hello World', 'n': 7, 'x': 2.5, 'd': {'b': 1, 'a': 'two', 'C': [1]}, 'uni': 'ÄÖ straße ǅ', 'spaces': '  a  b \n c ', 'big': 1e16, 'tiny': 1e-5}

CASES = {
    # white space
    'trim-blocks': 'a\n{% if true %}\nb\n{% endif %}\nc\n',
    'trim-blocks-not-outputs': 'a\n{{ 1 }}\nb\n\n',
    'lstrip-blocks': 'a\n    {% if true %}\n  b\n    {% endif %}\n  c',
    'lstrip-only-line-start': 'a  {% if true %}b{% endif %}  {% if true %}c{% endif %}',
    'lstrip-after-trimmed': '{% if true %}\n  {% if true %}\n x\n  {% endif %}\n{% endif %}\n',
    'minus': 'a  \n {%- if true -%} \n b \n {%- endif -%} \n c {{- 1 -}} \n d',
    'plus': '   {%+ if true +%}\nb{% endif +%}\nc',
    'comment': 'a\n  {# x {{ 1 }} {% if %} #}\nb {#- c -#} d\n{# e #}\n\nf',
    'raw': '{% raw %}{{ a }} {% b %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  y',
    'newlines': 'a\r\nb\rc\n\n',
    'leading-indent': '  {% set a = 1 %}\n  {{ a }}',
    'output-then-block': '{{ 1 }}\n  {% if true %}y{% endif %}\n',
    # literals, operators
    'literals': '{{ 1 }} {{ 1.5 }} {{ -3 }} {{ 1_000 }} {{ 1e3 }} {{ "a" \'b\' }} {{ true }} {{ False }} {{ none }} {{ [] }} {{ {} }} {{ () }} {{ (1,) }}',
    'escapes': '{{ "a\\n\\t\\x41\\u00e9\\\\\\"q" }}|{{ \'it\\\'s\' }}|{{ "\\q" }}',
    'repr': '{{ ["a", \'b\\\'c\', "d\\n", 1, 2.0, none, true, {"k": [1]}, ("t",)] }} {{ d }} {{ ["ü\\u00a0\\u200b"] }}',
    'arithmetic': '{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 * 1.5 }}',
    'floats': '{{ 0.1 + 0.2 }} {{ big }} {{ tiny }} {{ 1e15 }} {{ 123456789.125 }} {{ 1.0 }} {{ 1e300 * 1e10 }} {{ 3.0 * 2 }} {{ 100000000000000000.0 }}',
    'strings': '{{ "a" + "b" }} {{ "a" ~ 1 ~ none }} {{ "ab" * 3 }} {{ [1] + [2] }} {{ [0] * 2 }} {{ "%s-%d%%" % ("x", 3) }} {{ "%s" % word }}',
    'comparison': '{{ 1 == 1.0 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 3 >= 3 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ none == none }} {{ true == 1 }} {{ "1" == 1 }} {{ [1] == [1] }} {{ {"a": 1} == {"a": 1} }}',
    'in': '{{ "a" in "cat" }} {{ 1 in [1, 2] }} {{ "b" in d }} {{ "z" not in d }} {{ not 1 in [2] }} {{ "" in "x" }} {{ missing_thing is defined }} {{ "x" in empty }}',
    'logic': '{{ true and false }} {{ 1 and 2 }} {{ 0 or "x" }} {{ not "" }} {{ not not 1 }} {{ none or false }} {{ 1 if 0 else 2 }} {{ 1 if 0 }}|{{ "a" if true }} {{ 1 if false else 2 if false else 3 }}',
    'precedence': '{{ 1 ~ 2 * 3 ~ 4 }} {{ not 1 == 2 }} {{ -2 ** 2 }} {{ 2 * -3 }} {{ "a" ~ "b"|upper }} {{ -1|abs }} {{ (-3)|abs }} {{ 10 - 2 - 3 }}',
    'undefined': '[{{ missing }}] {{ missing is undefined }} {{ messages[0].missing }} {{ messages[0]["missing"] is defined }} {{ missing|length }} {% for x in missing %}y{% endfor %} {{ missing == other }} {{ not missing }}',
    # access
    'access': "{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].name }} {{ messages[1].content[0] }} {{ messages[1]['content'][-1] }} {{ d.b }} {{ d['C'][0] }} {{ messages[99] }}|{{ word[3] }}",
    'slices': '{{ word[1:4] }} {{ word[:-1] }} {{ word[::2] }} {{ word[::-1] }} {{ [1,2,3,4][1:] }} {{ [1,2,3,4][-2:] }} {{ [1,2,3,4][::-1] }} {{ uni[1:3] }} {{ messages[1:]|length }} {{ [1,2,3][5:] }} {{ [1,2,3,4,5][3:0:-2] }} {{ word[100:] }}',
    'methods': "{{ word.upper() }} {{ word.lower() }} {{ word.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ spaces.strip()|tojson }} {{ spaces.lstrip()|tojson }} {{ spaces.rstrip()|tojson }} {{ 'xxaxx'.strip('x') }} {{ 'abc'.rstrip('cb') }} {{ word.startswith('He') }} {{ word.endswith(('x', 'ld')) }} {{ word.find('o') }} {{ word.rfind('o') }} {{ word.find('z') }} {{ word.count('l') }} {{ word.replace('l', 'L') }} {{ word.replace('l', 'L', 1) }} {{ 'abc'.replace('', '-') }}",
    'split': "{{ 'a,b,,c'.split(',') }} {{ 'a,b,,c'.split(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'abc'.split('b')|join('+') }}",
    'string-tests': "{{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ '-'.join(['a', 'b']) }} {{ 'prefix'.removeprefix('pre') }} {{ 'suffix'.removesuffix('fix') }}",
    'dict-methods': "{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 'std') }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    'list-methods': "{{ [3, 1, 3].count(3) }} {{ [3, 1].index(1) }}",
    # statements
    'for': '{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ m.role }}\n{% endfor %}',
    'for-else': '{% for m in empty %}x{% else %}none{% endfor %}{% for m in [1] %}y{% else %}none{% endfor %}',
    'for-if': "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }} {{ loop.length }};{% endfor %}",
    'for-neighbours': "{% for m in [1,2,3] %}{{ loop.previtem }}<{{ m }}>{{ loop.nextitem if not loop.last }} {% endfor %}",
    'for-nested': '{% for a in [1,2] %}{% for b in [3,4] %}{{ a }}{{ b }}{{ loop.first }} {% endfor %}{{ loop.index }}{% endfor %}',
    'for-kinds': '{% for c in "aé漢" %}{{ c }}.{% endfor %}{% for k in d %}{{ k }}{% endfor %}',
    'break-continue': '{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}',
    'scope': '{% set a = 1 %}{% for i in [1,2] %}{{ a }}{% set a = a + i %}{{ a }};{% endfor %}{{ a }}{% if true %}{% set a = 9 %}{% endif %}{{ a }}',
    'namespace': '{% set ns = namespace(found=false, n=0) %}{% for i in [1,2,3] %}{% set ns.n = ns.n + i %}{% set ns.found = true %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.missing is defined }}',
    'set-tuple': "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}",
    'set-block': '{% set a %}x{{ 1 }}y{% endset %}[{{ a }}]{% set b | upper %}abc{% endset %}{{ b }}{{ a|length }}',
    'if-elif': '{% for i in range(4) %}{% if i == 0 %}a{% elif i == 1 %}b{% elif i == 2 %}c{% else %}d{% endif %}{% endfor %}',
    'macro': "{% macro f(a, b=2, c='z') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='q') }}{{ f(b=5, a=6) }}{{ f('x')|length }}",
    'macro-recursive': "{% macro f(v) %}{% if v is mapping %}{ {%- for k, x in v|dictsort %}{{ k }}:{{ f(x) }},{% endfor -%} }{% elif v is string %}'{{ v }}'{% elif v is iterable %}[{% for x in v %}{{ f(x) }} {% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ f(tools) }}",
    'macro-scope': "{% set g = 'global' %}{% macro f() %}{{ g }}{% set g2 = 'in' %}{% endmacro %}{{ f() }}{{ g2 is defined }}{% macro h(x) %}{{ f() }}{{ x }}{% endmacro %}{{ h(1) }}{% for i in [1] %}{{ h(i) }}{% endfor %}",
    'with': '{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}',
    'filter-block': '{% filter upper %}abc {{ word }}{% endfilter %}{% filter replace("a", "b")|trim %} aa {% endfilter %}',
    'generation': '{% for m in messages %}{% if m.role == "assistant" %}{% generation %}A{% endgeneration %}{% else %}U{% endif %}{% endfor %}',
    # filters
    'tojson': "{{ d|tojson }} {{ messages[1].content|tojson }} {{ messages[4].tool_calls|tojson }} {{ [1.0, 1e16, 2.5e-7, none, true, false, ''] | tojson }}",
    'tojson-indent': "{{ tools|tojson(indent=4) }}\n{{ [[], {}, [1]]|tojson(indent=2) }}",
    'tojson-options': "{{ d|tojson(sort_keys=true) }} {{ d|tojson(separators=(',', ':')) }} {{ 'é漢😀\\x7f'|tojson(ensure_ascii=true) }} {{ '\\x01\\x1f\\u2028'|tojson }} {{ {1: 2, none: 3}|tojson }}",
    'filters-strings': "{{ spaces|trim|tojson }} {{ word|upper }} {{ word|lower }} {{ 'a b-c'|title }} {{ 'aBC'|capitalize }} {{ word|replace('o', '0') }} {{ 5|string + 'x' }} {{ word|length }} {{ uni|upper }} {{ uni|lower }} {{ word|reverse }}",
    'filters-lists': "{{ [3,1,2]|sort }} {{ [3,1,2]|sort(reverse=true) }} {{ ['b','A','c']|sort }} {{ [1,2,3]|first }} {{ [1,2,3]|last }} {{ [1,2]|join(',') }} {{ 'abc'|list }} {{ [1,1,2]|unique|list }} {{ [1,2,3]|reverse|list }} {{ [1,2,3]|sum }} {{ [3,1]|min }} {{ [3,1]|max }} {{ d|dictsort }} {{ d|items|list }} {{ []|first }}|{{ d|length }} {{ 'a'|join('-') }}",
    'filters-choose': "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|list }} {{ messages|map(attribute='role')|join(' ') }} {{ [1,2,3,4]|select('even')|list }} {{ [1,2,3]|reject('odd')|list }} {{ ['a','b']|map('upper')|list }} {{ messages|selectattr('tool_calls', 'defined')|list|length }} {{ messages|selectattr('tool_calls')|list|length }} {{ [0,1,'']|select|list }} {{ [1,5]|select('>', 2)|list }} {{ messages|map(attribute='name', default='-')|list }}",
    'filters-numbers': "{{ '3'|int + 1 }} {{ 'x'|int(5) }} {{ '2.5'|float }} {{ -3|abs }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 7.9|int }} {{ '12.7'|int }} {{ 2.4|round(method='ceil')|int }} {{ true|int }}",
    'filters-default': "{{ missing|default('m') }} {{ nothing|default('m') }} {{ nothing|default('m', true) }} {{ ''|d('e', boolean=true) }} {{ missing|default }}|",
    'filters-indent': "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, first=true) }}|{{ 'a\\nb'|indent('> ') }}|{{ 'a\\n\\nb'|indent(1, blank=true) }}",
    'filters-escape': "{{ '<a href=\"x\">&\\'</a>'|e }} {{ '<b>'|safe }}",
    'sort-attribute': "{% for m in messages|sort(attribute='role') %}{{ m.role }},{% endfor %} {{ [{'a': 2}, {'a': 1}]|map(attribute='a')|list }}",
    # tests
    'tests': "{{ 1 is number }} {{ 'a' is string }} {{ d is mapping }} {{ [1] is sequence }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ none is none }} {{ true is boolean }} {{ 1 is boolean }} {{ true is number }} {{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is true }} {{ 1 is true }} {{ missing is not defined }} {{ 1 is not none }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ 2 is gt 1 }} {{ 'a' is sameas 'b' }} {{ raise_exception is callable }} {{ d is sequence }}",
    'test-and-filter': "{{ missing is defined and missing|length > 0 }} {{ tools is defined and tools is not none and tools|length }} {{ messages[0].role is string and 1 }}",
    # functions
    'range': '{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {% for i in range(0) %}x{% endfor %}',
    'dict': "{{ dict(a=1, b='x') }} {{ dict(d, z=1)|length }} {{ {'a': 1, 'b': [1, 2]}['b'][1] }}",
    'strftime': "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %p %%') }} {{ strftime_now('%a %y %I') }}",
    # whole templates, in the shapes of published ones
    'chatml': "{% for message in messages[:2] %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nDefault<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    'tools-system': '{%- if tools %}\n    {{- \'<|im_start|>system\\n\' }}\n    {%- if messages[0].role == \'system\' %}\n        {{- messages[0].content + \'\\n\\n\' }}\n    {%- endif %}\n    {{- "# Tools\\n<tools>" }}\n    {%- for tool in tools %}\n        {{- "\\n" }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- "\\n</tools><|im_end|>\\n" }}\n{%- endif %}\n{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith(\'<tool_response>\') and message.content.endswith(\'</tool_response>\')) %}\n        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{{ ns.last_query_index }}',
    'think-split': "{% for message in messages %}{% if message.role == 'assistant' and message.content %}{% set content = message.content %}{% if '</think>' in content %}{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}[{{ reasoning }}|{{ content }}]{% endif %}{% endif %}{% endfor %}",
    'alternation': "{{ bos_token }}{% for m in [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}] %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}{% if m['role'] == 'user' %}{{ ' [INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}",
    'tool-arguments': "{% for m in messages if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ '<tool_call>\\n{\"name\": \"' }}{{ c.function.name }}{{ '\", \"arguments\": ' }}{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% if not loop.last %}\n{% endif %}{% endfor %}{% endfor %}",
    'content-parts': "{% for m in messages %}{% if m.content is string %}{{ m.content|trim }}{% elif m.content is iterable and m.content is not none %}{% for p in m.content %}{% if p.type == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %};{% endfor %}",
    # errors
    'error-raise': "{{ raise_exception('Only user and assistant roles are supported!') }}",
    'error-undefined-attribute': '{{ missing.attribute }}',
    'error-none-concat': "{{ 'a' + none }}",
    'error-undefined-concat': "{{ 'a' + missing }}",
    'error-none-iteration': '{% for a in none %}{% endfor %}',
    'error-division': '{{ 1 // 0 }}',
    'error-call-undefined': '{{ missing() }}',
    'error-index-not-found': '{{ [1].index(2) }}',
    'error-compare': "{{ 1 < 'a' }}",
    'error-immutable': '{% set a = [] %}{{ a.append(1) }}',
    'error-length-none': '{{ none|length }}',
    'error-macro-arguments': '{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}',
    'error-unpack': '{% set a, b = [1, 2, 3] %}',
    'error-syntax': '{% if %}',
    'error-no-end': '{% for a in b %}',
    'error-unclosed': '{{ 1',
}


def main():
    out = []
    for name, source in CASES.items():
        case = {'name': name, 'template': source}
        try:
            case['expected'] = ENV.from_string(source).render(**VARS)
            assert not name.startswith('error-'), (name, case['expected'])
        except Exception as e:
            assert name.startswith('error-'), (name, e)
            case['message'] = str(e) if isinstance(e, Refused) else ''
        out.append(case)
    with open(os.path.join(HERE, 'templates.json'), 'w') as f:
        json.dump({'now_s': int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), 'variables': VARS, 'cases': out}, f, ensure_ascii=True, indent=1)
        f.write('\n')
    print(len(out), 'cases')


main()

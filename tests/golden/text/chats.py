#!/usr/bin/env python3
"""Makes chats.json: conversations rendered by jinja2 with templates written after those that the model
families publish, and by hand for Kimi K3, which publishes none.

    V/bin/python tests/golden/text/chats.py        (V has jinja2)
"""
import copy, json, os
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENV.filters['tojson'] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
    x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


ENV.globals['raise_exception'] = refuse

QWEN_HEAD = r'''{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
'''
TOOL_ROLE = r'''{%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
'''
TEMPLATES = {
    'chatml': "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    'qwen2.5': QWEN_HEAD + r'''{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    ''' + TOOL_ROLE + r'''{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
''',
    'qwen3': r'''{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
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
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    ''' + TOOL_ROLE.replace('message.content', 'content') + r'''{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
''',
    'llama3': r'''{{- bos_token }}
{%- set date_string = "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {{- "with its proper arguments that best answers the given prompt.\n\n" }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
''',
    'mistral': r'''{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if message == user_messages[-1] and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {{- '{"name": "' + tool_call.function.name + '", "arguments": ' + (tool_call.function.arguments | tojson) }}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
''',
    'kimi-k2': r'''{%- macro open(message) -%}
  {%- set role_name = message.get('name') or message['role'] -%}
  {%- if message['role'] == 'user' -%}<|im_user|>{{ role_name }}<|im_middle|>
  {%- elif message['role'] == 'assistant' -%}<|im_assistant|>{{ role_name }}<|im_middle|>
  {%- else -%}<|im_system|>{{ role_name }}<|im_middle|>
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for message in messages -%}
  {%- if loop.first and messages[0]['role'] != 'system' -%}<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>{%- endif -%}
  {{ open(message) }}
  {%- if message['role'] == 'tool' -%}
    {{ '## Return of ' + message.tool_call_id + '\n' }}
  {%- endif -%}
  {%- if message['content'] is string -%}{{ message['content'] }}{%- endif -%}
  {%- if message.get('tool_calls') -%}
    <|tool_calls_section_begin|>
    {%- for tool_call in message['tool_calls'] -%}
      <|tool_call_begin|>{{ tool_call['id'] }}<|tool_call_argument_begin|>{% if tool_call['function']['arguments'] is string %}{{ tool_call['function']['arguments'] }}{% else %}{{ tool_call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
''',
}

TOOLS = [{'type': 'function', 'function': {'name': 'get_weather', 'description': 'Weather "now" é', 'parameters': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer', 'enum': [1, 2, 3]}}, 'required': ['city']}}},
    {'type': 'function', 'function': {'name': 'now', 'parameters': {}}}]


def call(id, name, arguments):
    return {'id': id, 'type': 'function', 'function': {'name': name, 'arguments': arguments}}


CONVERSATIONS = {
    'user': [{'role': 'user', 'content': 'Hi <|im_end|> there'}],
    'system': [{'role': 'system', 'content': ' Be kind. '}, {'role': 'user', 'content': ' Hello '}],
    'turns': [{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': ' b '}, {'role': 'user', 'content': 'c'}],
    'think': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nb'}, {'role': 'user', 'content': 'c'}],
    'think-last': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': '\nb', 'reasoning_content': '\nhm\n'}],
    'one-call': [{'role': 'user', 'content': 'Weather?'}, {'role': 'assistant', 'content': '', 'tool_calls': [call('abcdefgh1', 'get_weather', '{"city": "Köln", "days": 3}')]},
                 {'role': 'tool', 'tool_call_id': 'abcdefgh1', 'content': '{"t": 21.5}'}, {'role': 'assistant', 'content': '21.5'}, {'role': 'user', 'content': 'Thanks'}],
    'two-calls': [{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'let me see', 'reasoning_content': 'think', 'tool_calls': [
        call('abcdefgh1', 'get_weather', '{"city": "x"}'), call('abcdefgh2', 'now', '{}')]},
        {'role': 'tool', 'tool_call_id': 'abcdefgh1', 'content': 'r1'}, {'role': 'tool', 'tool_call_id': 'abcdefgh2', 'content': 'r2'}],
}


def parsed(messages):
    """As servers hand messages to templates: arguments are objects."""
    messages = copy.deepcopy(messages)
    for m in messages:
        for c in m.get('tool_calls', []):
            c['function']['arguments'] = json.loads(c['function']['arguments'])
    return messages


def x(*parts):
    """XTML by hand: (tag, attributes...) opens, '/tag' closes, '.' ends a message, =text is text."""
    out = ''
    for p in parts:
        if isinstance(p, tuple):
            out += '<|open|>' + p[0] + ''.join(' %s="%s"' % (p[i], p[i + 1]) for i in range(1, len(p), 2)) + '<|sep|>'
        elif p[0] == '/':
            out += '<|close|>' + p[1:] + '<|sep|>'
        elif p == '.':
            out += '<|close|>message<|sep|><|end_of_msg|>'
        else:
            out += p[1:]
    return out


K3_TOOLS = json.dumps(TOOLS, ensure_ascii=False, separators=(',', ':'), sort_keys=True)
K3 = [
    ('user', {}, x(('message', 'role', 'user'), '=Hi <|im_end|> there', '.', ('message', 'role', 'assistant'), ('think',))),
    ('system', {'no_thinking': True}, x(('message', 'role', 'system'), '= Be kind. ', '.', ('message', 'role', 'user'), '= Hello ', '.', ('message', 'role', 'assistant'), ('response',))),
    ('turns', {'effort': 'low'}, x(('message', 'role', 'system', 'type', 'thinking-effort'), '=`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=low`.', '.',
        ('message', 'role', 'system'), '=S', '.', ('message', 'role', 'user'), '=a', '.', ('message', 'role', 'assistant'), ('think',), '/think', ('response',), '= b ', '/response', '.', ('message', 'role', 'user'), '=c', '.', ('message', 'role', 'assistant'), ('think',))),
    ('two-calls', {'tools': True, 'tool_choice': 'required'}, x(('message', 'role', 'system', 'type', 'tool-declare'), '=# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n' + K3_TOOLS + '\n```', '.',
        ('message', 'role', 'system'), '=S', '.', ('message', 'role', 'user'), '=q', '.', ('message', 'role', 'assistant'), ('think',), '=think', '/think', ('response',), '=let me see', '/response',
        ('tools',), ('call', 'tool', 'get_weather', 'index', 1), ('argument', 'key', 'city', 'type', 'string'), '=x', '/argument', '/call', ('call', 'tool', 'now', 'index', 2), '/call', '/tools', '.',
        ('message', 'role', 'tool', 'tool', 'get_weather', 'index', 1), '=r1', '.', ('message', 'role', 'tool', 'tool', 'now', 'index', 2), '=r2', '.',
        ('message', 'role', 'system', 'type', 'tool-choice'), '=The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.', '.', ('message', 'role', 'assistant'), ('think',))),
    ('one-call', {'response_format': {'type': 'json_schema', 'json_schema': {'schema': {'type': 'object', 'b': 1, 'a': 'é'}}}}, x(('message', 'role', 'user'), '=Weather?', '.', ('message', 'role', 'assistant'), ('think',), '/think', ('response',), '/response',
        ('tools',), ('call', 'tool', 'get_weather', 'index', 1), ('argument', 'key', 'city', 'type', 'string'), '=Köln', '/argument', ('argument', 'key', 'days', 'type', 'number'), '=3', '/argument', '/call', '/tools', '.',
        ('message', 'role', 'tool', 'tool', 'get_weather', 'index', 1), '={"t": 21.5}', '.', ('message', 'role', 'assistant'), ('think',), '/think', ('response',), '=21.5', '/response', '.', ('message', 'role', 'user'), '=Thanks', '.',
        ('message', 'role', 'system', 'type', 'response-format'), '=The system is invoked with `response_format=json_schema`.\nYour response must be raw JSON data without markdown code blocks (```json) or any additional formatting.\nThe JSON data must match the following schema:\n```json\n{"a":"é","b":1,"type":"object"}\n```', '.', ('message', 'role', 'assistant'), ('think',))),
]


def main():
    cases = []
    for family, source in TEMPLATES.items():
        for name, messages in CONVERSATIONS.items():
            for options in ({}, {'tools': True}, {'no_generation': True, 'no_thinking': True}, {'no_thinking': True}):
                given = {'messages': parsed(messages), 'tools': TOOLS if options.get('tools') else None, 'bos_token': '<s>', 'eos_token': '</s>',
                         'add_generation_prompt': not options.get('no_generation')}
                if options.get('no_thinking'):
                    given['enable_thinking'] = False
                try:
                    expected = ENV.from_string(source).render(**given)
                except Refused as e:
                    expected = None
                cases.append({'family': family, 'conversation': name, 'options': options, 'expected': expected})
    for name, options, expected in K3:
        cases.append({'family': 'kimi-k3', 'conversation': name, 'options': options, 'expected': expected})
    with open(os.path.join(HERE, 'chats.json'), 'w') as f:
        json.dump({'tools': TOOLS, 'conversations': CONVERSATIONS, 'templates': TEMPLATES, 'cases': cases}, f, ensure_ascii=True, indent=1)
        f.write('\n')
    print(len(cases), 'cases')


main()

#!/usr/bin/env python3
"""check_clients.py BUILD - moe-serve with the clients that people use: the packages openai, anthropic
and ollama, against both demo models. `make check-clients` makes a virtual environment for them.

Ends with "clients N passed, N failed"."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import anthropic
import ollama
import openai

from checks import check, end

BUILD = sys.argv[1]
MODELS = 'tests/models/demo-qwen3next-mtp.gguf', 'tests/models/demo-gptoss-MXFP4.gguf'
KEY = 'secret'
TOOLS = [{'type': 'function', 'function': {
    'name': 'weather', 'description': 'The weather in a city',
    'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}},
                   'required': ['city']}}}]
HELLO = [{'role': 'user', 'content': 'Hello'}]
# a second turn with a call and its result, as each client sends it
CALLED = HELLO + [
    {'role': 'assistant', 'content': None, 'tool_calls': [
        {'id': 'call_1', 'type': 'function',
         'function': {'name': 'weather', 'arguments': '{"city": "Rome"}'}}]},
    {'role': 'tool', 'tool_call_id': 'call_1', 'content': 'sunny'}]
SCHEMA = {'type': 'object', 'properties': {'n': {'type': 'integer', 'minimum': 1, 'maximum': 9}},
          'required': ['n'], 'additionalProperties': False}


def raises(kind, what, call):
    try:
        call()
    except kind as e:
        check(True, what)
        return e
    except Exception as e:                                # noqa: BLE001
        check(False, f'{what}: {type(e).__name__}: {e}')
        return None
    check(False, f'{what}: nothing was raised')
    return None


class Server:
    """moe-serve on a port of its own, with a cache of its own."""

    def __init__(self, model, folder):
        env = dict(os.environ, XDG_CACHE_HOME=folder, HOME=folder, MOE_DEVICE='cpu')
        self.log = open(os.path.join(folder, 'log'), 'w+')
        self.process = subprocess.Popen(
            [f'{BUILD}/moe-serve', '-m', model, '--ctx', '2048', '--listen', '127.0.0.1:0',
             '--api-key', KEY, '--alias', 'demo', '--alias', 'claude-local'],
            stderr=self.log, stdin=subprocess.DEVNULL, env=env)
        for _ in range(600):
            found = re.search(r'listening on (http://\S+)', self.read())
            if found:
                self.url = found.group(1)
                return
            time.sleep(0.1)
        raise SystemExit('moe-serve did not start: ' + self.read())

    def read(self):
        with open(self.log.name) as f:
            return f.read()

    def stop(self):
        self.process.terminate()
        check(self.process.wait(60) == 0, 'exit code after SIGTERM')


def openai_chat(c, said):
    opts = dict(model='gpt-4o', messages=HELLO, temperature=0, max_tokens=24)
    r = c.chat.completions.create(**opts)
    check(r.choices[0].message.content == said, f'chat: {r.choices[0].message.content!r}')
    check(r.model == 'demo' and r.choices[0].finish_reason == 'length', 'chat: model, finish_reason')
    check(r.usage.completion_tokens == 24 and r.usage.prompt_tokens > 0, 'chat: usage')
    text, last = '', None
    for chunk in c.chat.completions.create(**opts, stream=True,
                                           stream_options={'include_usage': True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ''
        last = chunk
    check(text == said, f'chat stream: {text!r}')
    check(last.usage and last.usage.completion_tokens == 24, 'chat stream: usage')
    r = c.chat.completions.create(model='x', messages=CALLED, tools=TOOLS, max_tokens=16)
    check(r.choices[0].finish_reason in ('length', 'stop', 'tool_calls'), 'chat: a call answered')
    r = c.chat.completions.create(**opts, n=2, seed=4)
    check(len(r.choices) == 2 and r.choices[1].index == 1, 'chat: two choices')
    r = c.chat.completions.create(
        model='x', messages=HELLO, max_tokens=600, seed=1,
        response_format={'type': 'json_schema',
                         'json_schema': {'name': 's', 'schema': SCHEMA, 'strict': True}})
    check(1 <= json.loads(r.choices[0].message.content)['n'] <= 9, 'chat: a schema')
    with c.chat.completions.with_streaming_response.create(**opts, stream=True) as raw:
        check('text/event-stream' in raw.headers['content-type'], 'chat stream: type')


def joined(rows):
    """What the tokens of rows of logprobs come to."""
    return b''.join(bytes(r.bytes) for r in rows).decode()


def openai_logprobs(c):
    opts = dict(model='x', messages=HELLO, max_tokens=60, seed=3, logprobs=True, top_logprobs=4)
    r = c.chat.completions.create(**opts, temperature=0)
    rows = r.choices[0].logprobs.content
    check(joined(rows) == r.choices[0].message.content, 'logprobs: rows are the text')
    check(all(len(w.top_logprobs) == 4 and w.logprob == w.top_logprobs[0].logprob <= 0
              for w in rows), 'logprobs: temperature 0 draws the likeliest')
    r = c.chat.completions.create(**opts, temperature=1, stop=['e'])
    said = r.choices[0].message.content
    check('e' not in said and joined(r.choices[0].logprobs.content) == said,
          f'logprobs: with a stop string {said!r}')
    rows = [row for chunk in c.chat.completions.create(**opts, temperature=1, stop=['e'],
                                                       stream=True)
            if chunk.choices and chunk.choices[0].logprobs
            for row in chunk.choices[0].logprobs.content]
    check(rows == r.choices[0].logprobs.content, 'logprobs: the same in a stream')
    r = c.completions.create(model='x', prompt='Once upon a time', max_tokens=5, temperature=0,
                             logprobs=2, echo=True)
    rows = r.choices[0].logprobs
    check(''.join(rows.tokens) == r.choices[0].text and rows.token_logprobs[0] is None and
          all(p <= 0 for p in rows.token_logprobs[1:]), 'completions: logprobs with echo')
    check(rows.text_offset[-1] == len(r.choices[0].text) - len(rows.tokens[-1]) and
          len(rows.top_logprobs[1]) == 2, 'completions: offsets')
    r = c.responses.create(model='x', input='Hello', temperature=0, max_output_tokens=40,
                           include=['message.output_text.logprobs'], top_logprobs=2)
    part = r.output[-1].content[0]
    check(joined(part.logprobs) == part.text and len(part.logprobs[0].top_logprobs) == 2,
          'responses: logprobs')


def openai_choices(c):
    opts = dict(model='x', messages=HELLO, max_tokens=30)
    texts = [[m.message.content for m in c.chat.completions.create(**opts, n=3, seed=8).choices]
             for _ in range(2)]
    check(texts[0] == texts[1] and len(set(texts[0])) > 1, f'n and seed: {texts}')
    alone = c.chat.completions.create(**opts, seed=8)
    check(alone.choices[0].message.content == texts[0][0], 'n: the first is what comes alone')
    check(alone.usage.completion_tokens <= 30, 'n: usage')
    r = c.chat.completions.create(**opts, seed=8, stop=['zzzz', ' '])
    check(' ' not in r.choices[0].message.content and r.choices[0].finish_reason in
          ('stop', 'length'), 'stop')
    text, finish = {}, {}
    for chunk in c.chat.completions.create(**opts, n=3, seed=8, stream=True):
        for m in chunk.choices:
            text[m.index] = text.get(m.index, '') + (m.delta.content or '')
            finish[m.index] = m.finish_reason or finish.get(m.index)
    check([text[i] for i in range(3)] == texts[0] and all(finish.values()), 'n in a stream')
    raises(openai.BadRequestError, 'n: 9 are too many',
           lambda: c.chat.completions.create(**opts, n=9))
    e = raises(openai.BadRequestError, 'completions: suffix',
               lambda: c.completions.create(model='x', prompt='a', suffix='b'))
    check(e is not None and e.param == 'suffix', 'suffix: its name')


PICK = {'type': 'object', 'properties': {
    'mode': {'type': 'string', 'enum': ['fast', 'slow']},
    'n': {'type': 'integer', 'minimum': 2, 'maximum': 4}}, 'required': ['mode', 'n'],
        'additionalProperties': False}


def fits(arguments):
    return (set(arguments) == {'mode', 'n'} and arguments['mode'] in ('fast', 'slow') and
            2 <= arguments['n'] <= 4)


def forced_calls(o, a):
    tools = TOOLS + [{'type': 'function', 'function': {'name': 'pick', 'parameters': PICK}}]
    named = {'type': 'function', 'function': {'name': 'pick'}}
    allowed = {'type': 'allowed_tools', 'allowed_tools': {'mode': 'required', 'tools': [named]}}
    opts = dict(model='x', messages=HELLO, tools=tools, temperature=0, max_tokens=800)
    for choice in named, allowed:
        r = o.chat.completions.create(**opts, tool_choice=choice,
                                      parallel_tool_calls=False).choices[0]
        calls = r.message.tool_calls or []
        check(r.finish_reason == 'tool_calls' and len(calls) == 1 and
              calls[0].function.name == 'pick' and fits(json.loads(calls[0].function.arguments)),
              f'forced: {choice["type"]}: {r.message}')
    text = name = ''
    for chunk in o.chat.completions.create(**opts, tool_choice=named, stream=True):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name += call.function.name or ''
            text += call.function.arguments or ''
    check(name == 'pick' and fits(json.loads(text)), f'forced in a stream: {name} {text}')
    only = [{'type': 'function', 'function': {'name': 'pick', 'parameters': PICK, 'strict': True}}]
    r = o.chat.completions.create(**dict(opts, tools=only), tool_choice='required').choices[0]
    check(r.message.tool_calls and r.message.content is None and
          all(fits(json.loads(c.function.arguments)) for c in r.message.tool_calls),
          f'required: {r.message}')
    absent = {'type': 'function', 'function': {'name': 'absent'}}
    raises(openai.BadRequestError, 'forced: a tool that is not there',
           lambda: o.chat.completions.create(**opts, tool_choice=absent))
    r = o.responses.create(model='x', input='Hello', temperature=0, tool_choice='required',
                           tools=[{'type': 'function', 'name': 'pick', 'parameters': PICK,
                                   'strict': True}])
    check(r.output[-1].type == 'function_call' and fits(json.loads(r.output[-1].arguments)),
          f'responses: required: {r.output[-1]}')
    given = [{'name': 'pick', 'input_schema': PICK}]
    for choice in ({'type': 'any'},
                   {'type': 'tool', 'name': 'pick', 'disable_parallel_tool_use': True}):
        r = a.messages.create(model='x', messages=HELLO, max_tokens=800, tools=given,
                              tool_choice=choice, extra_body={'temperature': 0})
        check(r.stop_reason == 'tool_use' and r.content[-1].name == 'pick' and
              fits(r.content[-1].input), f'messages: {choice["type"]}: {r.content}')


def openai_other(c, said):
    check([m.id for m in c.models.list()][0] == 'demo', 'models.list')
    check(c.models.retrieve('claude-local').id == 'claude-local', 'models.retrieve')
    raises(openai.NotFoundError, 'an unknown model', lambda: c.models.retrieve('absent'))
    r = c.completions.create(model='x', prompt='Once upon a time', max_tokens=8, temperature=0)
    text = ''.join(p.choices[0].text for p in c.completions.create(
        model='x', prompt='Once upon a time', max_tokens=8, temperature=0, stream=True))
    check(r.choices[0].text and r.choices[0].text == text, 'completions')
    r = c.responses.create(model='x', input='Hello', temperature=0, max_output_tokens=24)
    check(r.status == 'incomplete' and r.output_text == said, f'responses: {r.output_text!r}')
    with c.responses.stream(model='x', input='Hello', temperature=0) as stream:
        events = [e.type for e in stream]
        check(events[0] == 'response.created' and events[-1] == 'response.completed',
              f'responses stream: {events[:2]} ... {events[-1]}')
        check(stream.get_final_response().output_text.startswith(said), 'responses stream: text')


def openai_errors(c, url):
    raises(openai.BadRequestError, 'no messages',
           lambda: c.chat.completions.create(model='x', messages=[]))
    e = raises(openai.BadRequestError, 'a prompt that is too long',
               lambda: c.chat.completions.create(
                   model='x', messages=[{'role': 'user', 'content': 'word ' * 4000}]))
    check(e is not None and e.code == 'context_length_exceeded', 'its code')
    other = openai.OpenAI(base_url=url + '/v1', api_key='wrong', max_retries=0)
    raises(openai.AuthenticationError, 'a wrong key', other.models.list)


def anthropic_messages(c, said):
    opts = dict(model='claude-local', messages=HELLO, max_tokens=24,
                extra_body={'temperature': 0})
    r = c.messages.create(**opts)
    text = ''.join(b.text for b in r.content if b.type == 'text')
    check(text == said and r.stop_reason == 'max_tokens', f'messages: {text!r}')
    with c.messages.stream(**opts) as stream:
        check(''.join(stream.text_stream) == said, 'messages stream')
        check(stream.get_final_message().usage.output_tokens == 24, 'messages stream: usage')
    n = c.messages.count_tokens(model='x', messages=HELLO).input_tokens
    check(n == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0), 'count_tokens')
    r = c.messages.create(
        model='x', max_tokens=16, system=[{'type': 'text', 'text': 'Be brief.'}],
        tools=[{'name': 'weather', 'input_schema': TOOLS[0]['function']['parameters']}],
        messages=HELLO + [
            {'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'toolu_1',
                                               'name': 'weather', 'input': {'city': 'Rome'}}]},
            {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 'toolu_1',
                                          'content': 'sunny'}]}])
    check(r.role == 'assistant', 'messages: a call answered')
    e = raises(anthropic.BadRequestError, 'messages: too long',
               lambda: c.messages.create(model='x', max_tokens=8, messages=[
                   {'role': 'user', 'content': 'word ' * 4000}]))
    check(e is not None and 'prompt is too long' in str(e), 'its words')


def ollama_calls(c, said):
    opts = {'temperature': 0, 'num_predict': 24}
    r = c.chat(model='demo', messages=HELLO, options=opts)
    check(r.message.content == said and r.done_reason == 'length', f'ollama: {r.message.content!r}')
    text = ''.join(p.message.content for p in c.chat(model='demo', messages=HELLO, options=opts,
                                                     stream=True))
    check(text == said, 'ollama stream')
    check([m.model for m in c.list().models][0] == 'demo', 'ollama list')
    check(c.show('demo').modelinfo is not None, 'ollama show')
    check(c.ps().models[0].model == 'demo', 'ollama ps')
    check(c.generate(model='demo', prompt='Hello', options=opts).response != '', 'ollama generate')


def second_turn(c):
    long = [{'role': 'system', 'content': ' '.join(map(str, range(200)))}] + HELLO
    first = c.chat.completions.create(model='x', messages=long, max_tokens=8, temperature=0)
    again = c.chat.completions.create(model='x', max_tokens=8, temperature=0, messages=long + [
        {'role': 'assistant', 'content': first.choices[0].message.content or ''},
        {'role': 'user', 'content': 'And now?'}])
    cached = again.usage.prompt_tokens_details.cached_tokens
    check(cached >= first.usage.prompt_tokens - 10, f'a second turn: {cached} tokens were there')


def main():
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [f'{BUILD}/moe-run', '-m', model, '--ctx', '2048', '-p', 'Hello', '-n', '24', '--temp',
                 '0', '--json', '-q', '--device', 'cpu'], capture_output=True, check=True)
            said = json.loads(run.stdout)['text']
            server = Server(model, folder)
            try:
                o = openai.OpenAI(base_url=server.url + '/v1', api_key=KEY, max_retries=0)
                openai_chat(o, said)
                openai_other(o, said)
                openai_logprobs(o)
                openai_choices(o)
                openai_errors(o, server.url)
                second_turn(o)
                a = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
                forced_calls(o, a)
                anthropic_messages(a, said)
                ollama_calls(ollama.Client(server.url, headers={'Authorization': f'Bearer {KEY}'}),
                             said)
            finally:
                server.stop()
    end('clients')


main()

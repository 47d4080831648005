#!/usr/bin/env python3
"""check_page.py BUILD [FOLDER] - the page of moe-serve in a real browser, with both demo models: a chat,
the map of experts that moves, stopping, trying again, a reload, keys; no request to anybody else, no
complaint of the browser. Screenshots go to FOLDER, if there is one.

`make check-page` runs it. Ends with "page N passed, N failed"; without a browser with one skip."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import browser
from checks import check, end

BUILD = sys.argv[1]
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
QWEN, GPTOSS = 'tests/models/demo-qwen3next-mtp.gguf', 'tests/models/demo-gptoss-MXFP4.gguf'
STORY = 'Tell me a long story about a captain and his ship.'


class Server:
    all = []

    def __init__(self, folder, *arguments, sim=False):
        program = f'{BUILD}/sim/moe-serve' if sim else f'{BUILD}/moe-serve'
        env = dict(os.environ, HOME=folder, XDG_CACHE_HOME=f'{folder}/cache')
        env.pop('MOE_DEVICE', None)
        self.process = subprocess.Popen([program, '--listen', '127.0.0.1:0', '--ctx', '4096', '--prompt-cache', '8M',
                                         *arguments], stderr=subprocess.PIPE, text=True, env=env)
        Server.all.append(self.process)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            m = re.search(r'listening on (http://\S+)', line)
            if m:
                self.url = m[1]
                break
        else:
            raise SystemExit(f'check_page.py: the server did not start: {"".join(self.lines)}')
        os.set_blocking(self.process.stderr.fileno(), False)

    def get(self, path):
        return json.load(urllib.request.urlopen(self.url + path, timeout=30))

    def idle(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.get('/slots')[0]['is_processing']:
                return True
            time.sleep(0.05)
        return False

    def stop(self):
        self.process.terminate()
        check(self.process.wait(30) == 0, 'the server did not stop in order')


def small_vram():
    """An amount in which only some experts of the first model have room."""
    def cached(vram):
        r = subprocess.run([f'{BUILD}/sim/moe-run', 'plan', '--json', '-m', QWEN, '--ctx', '4096',
                            '--device', 'cuda', '--vram', f'{vram}M'], capture_output=True)
        return r.returncode == 0 and json.loads(r.stdout)['plan']['vram']['cache']
    return next((v for v in range(8, 40) if cached(v)), None)


# What the page asks for, and more: the length of an answer.
MORE = """window.more = { max_tokens: 240, ignore_eos: true };
const real = window.fetch;
window.fetch = (path, o) => {
  if (o && o.body) o.body = JSON.stringify({ ...JSON.parse(o.body), ...window.more });
  return real(path, o);
};"""
ENDED = "!!document.querySelector('.turn:last-child .again')"
LAST = "document.querySelector('.turn:last-child .said').textContent"
MAP = "document.getElementById('map').toDataURL()"


def say(b, text):
    b.type('#text', text)
    b.press('Enter', 13)


def quiet(b, server, what, ignore=None):
    """No other host was asked, and the browser has nothing to complain about."""
    foreign = [u for u in b.requests if not u.startswith((server.url, 'data:', 'about:'))]
    check(not foreign, f'{what}: requests to others: {foreign[:3]}')
    bad = [c for c in b.complaints if not (ignore and ignore in c)]
    check(not bad, f'{what}: the browser complains: {bad[:3]}')
    b.requests, b.complaints = [], []


def chat(b, server, what):
    b.go(server.url + '/')
    check(b.wait("document.getElementById('state').textContent === 'ready'"), f'{what}: not ready')
    name = server.get('/v1/models')['data'][0]['id']
    check(b.run("document.getElementById('model').textContent") == name, f'{what}: its name')
    counts = "['n-vram', 'n-ram', 'n-drive'].map((i) => +document.getElementById(i).textContent)"
    check(b.wait(f'{counts}.reduce((a, c) => a + c) > 0'), f'{what}: no experts on the map')
    check(b.run("document.querySelectorAll('.place').length") >= 1, f'{what}: no plan')

    before, seen, speed, times = b.run(MAP), set(), 0, 0
    for again in range(5):               # answers are drawn: one in a few ends at once
        if again:
            b.click('#fresh')
        say(b, STORY)
        until = time.monotonic() + 60
        while time.monotonic() < until and not b.run(ENDED):
            seen.add(b.run(MAP))
            speed = max(speed, float(b.run("document.getElementById('tok-s').textContent").replace(',', '')))
            times += 1
            time.sleep(0.1)
        if len(b.run(LAST)) > 20:
            break
    for _ in range(8):                   # what was hot cools down
        time.sleep(0.2)
        seen.add(b.run(MAP))
    check(b.run(ENDED), f'{what}: the answer did not end')
    check(len(b.run(LAST)) > 20, f'{what}: no answer')
    check(len(seen - {before}) >= 2, f'{what}: the map does not move: {len(seen)} of {times}')
    check(speed > 0 or times < 4, f'{what}: no tokens a second')
    note = b.run("document.querySelector('.turn:last-child .note')?.textContent")
    check(note and 'tokens' in note, f'{what}: what it took: {note}')
    check(b.run("document.querySelectorAll('.turn').length") == 2, f'{what}: two turns')
    check(b.run("document.getElementById('prefix').textContent") != '', f'{what}: prompts')
    check(b.run("document.getElementById('pass').textContent") != '', f'{what}: answers in a pass')


def second_turn(b, what):
    say(b, 'And then?')
    check(b.wait("document.querySelectorAll('.turn').length === 4"), f'{what}: four turns')
    check(b.wait(ENDED, 60), f'{what}: the second answer did not end')
    note = b.run("document.querySelector('.turn:last-child .note')?.textContent")
    check(note and 'of them cached' in note, f'{what}: the second prompt was read again: {note}')
    first = b.run(LAST)
    b.click('.turn:last-child .again')
    check(b.wait(f'{ENDED} && {LAST} !== {json.dumps(first)}', 60), f'{what}: trying again')
    check(b.run("document.querySelectorAll('.turn').length") == 4, f'{what}: still four turns')


def stopping(b, server, what):
    """An answer that would fill the context."""
    b.run('window.more = { ignore_eos: true }, 0')
    going = f"!document.getElementById('stop').hidden && {LAST}.length > 40"
    say(b, STORY)
    for _ in range(5):                   # answers are drawn: one in a few ends at once
        b.wait(f'{going} || {ENDED}', 60)
        if b.run(going) or not b.run(ENDED):
            break
        b.click('.turn:last-child .again')
    check(b.run(going), f'{what}: nothing to stop')
    b.click('#stop')
    check(b.wait(ENDED, 5), f'{what}: Stop does not stop')
    said = b.run(LAST)
    check(server.idle(5), f'{what}: the server goes on')
    time.sleep(0.3)
    check(b.run(LAST) == said and said, f'{what}: more text after Stop')
    check(b.run("document.querySelector('.turn:last-child .note')?.textContent") == 'stopped',
          f'{what}: it does not say so')


def reloading(b, what):
    n = b.run("document.querySelectorAll('.turn').length")
    b.reload()
    check(b.wait("document.getElementById('state').textContent === 'ready'"), f'{what}: not ready again')
    check(b.run("document.querySelectorAll('.turn').length") == n, f'{what}: the conversation is gone')
    check(b.wait("+document.getElementById('n-ram').textContent + "
                 "+document.getElementById('n-vram').textContent > 0"), f'{what}: the map is gone')


def texts(b, what):
    """What the model says is never markup."""
    hostile = ('Look:\n```html\n<b id="bad">x</b>\n```\n<img src=x onerror="window.bad = 1"> and '
               '`a < b`\n```\nopen')
    turns = [{'role': 'user', 'content': '<script>window.bad = 1</script>'},
             {'role': 'assistant', 'content': hostile, 'reasoning': '<i id="bad">hm</i>'}]
    b.run(f"sessionStorage.setItem('turns', {json.dumps(json.dumps(turns))}), 0")
    b.reload()
    check(b.wait("document.querySelectorAll('.turn').length === 2"), f'{what}: kept turns')
    check(b.run("!document.getElementById('bad') && !window.bad && "
                "!document.querySelector('#log img, #log script, #log i')"), f'{what}: text became markup')
    blocks = b.run("[...document.querySelectorAll('.block code')].map((e) => e.textContent)")
    check(blocks == ['<b id="bad">x</b>\n', 'open'], f'{what}: blocks of code: {blocks}')
    check(b.run("document.querySelector('.said p code').textContent") == 'a < b', f'{what}: code in a line')
    check(b.run("document.querySelector('.reasoning').open") is False, f'{what}: reasoning is not folded')
    b.click('.reasoning summary')
    check(b.run("document.querySelector('.reasoning div').textContent") == '<i id="bad">hm</i>',
          f'{what}: reasoning')
    b.click('#fresh')
    check(b.run("document.querySelectorAll('.turn').length") == 0, f'{what}: a new chat')


def keys(b, server):
    b.go(server.url + '/')
    check(b.wait("!document.getElementById('ask-key').hidden"), 'key: the page does not ask for it')
    check(b.run("document.getElementById('key-problem').textContent") == '', 'key: it is not wrong yet')
    b.type('#key', 'wrong')
    b.press('Enter', 13)
    check(b.wait("document.getElementById('key-problem').textContent.includes('does not accept')"),
          'key: a wrong one')
    check(b.run("sessionStorage.getItem('key')") is None, 'key: a wrong one is kept')
    b.type('#key', 'right')
    b.press('Enter', 13)
    check(b.wait("document.getElementById('ask-key').hidden && "
                 "document.getElementById('state').textContent === 'ready'"), 'key: the right one')
    say(b, 'Hello')
    check(b.wait(ENDED, 60) and len(b.run(LAST)) > 0, 'key: an answer')
    b.reload()
    check(b.wait("document.getElementById('state').textContent === 'ready'"), 'key: after a reload')
    check(b.run("document.getElementById('ask-key').hidden"), 'key: asked for again')


def phone(b, what):
    b.look(390, 640, True)
    check(b.run("document.documentElement.scrollWidth") <= 390, f'{what}: wider than a phone')
    check(b.run("document.getElementById('live').offsetWidth") == 0, f'{what}: both at once')
    b.click('#show-live')
    check(b.run("document.getElementById('map').offsetWidth") > 300, f'{what}: no map')
    check(b.run("document.documentElement.scrollWidth") <= 390, f'{what}: the map is wider than a phone')


def shots(b):
    """While an answer comes."""
    for name, size, dark in (('light', (1080, 640), False), ('dark', (1080, 640), True)):
        b.look(*size, dark)
        if b.run("!document.getElementById('fresh').disabled"):
            b.click('#fresh')
        b.run('window.more = { ignore_eos: true }, 0')
        say(b, STORY)
        b.wait(f'{LAST}.length > 600 || {ENDED}')
        b.shoot(os.path.join(FOLDER, f'page-{name}.png'))
        if b.run("!document.getElementById('stop').hidden"):
            b.click('#stop')
        b.wait(ENDED)


def main():
    program = browser.find()
    if not program:
        print('skip: there is no Chromium')
        print('page 0 passed, 0 failed, 1 skipped')
        return
    with tempfile.TemporaryDirectory(prefix='moe-page-', ignore_cleanup_errors=True) as folder:
        b = browser.Browser(program, folder)
        try:
            b.call('Page.addScriptToEvaluateOnNewDocument', source=MORE)
            vram = small_vram() if os.path.exists(f'{BUILD}/sim/moe-serve') else None
            where = ['--device', 'cuda', '--vram', f'{vram}M'] if vram else ['--device', 'cpu']
            for what, arguments, sim in (('qwen3next', ['-m', QWEN, *where], bool(vram)),
                                         ('gptoss', ['-m', GPTOSS, '--device', 'cpu'], False)):
                server = Server(folder, *arguments, sim=sim)
                b.look(1180, 700, False)
                chat(b, server, what)
                second_turn(b, what)
                stopping(b, server, what)
                reloading(b, what)
                texts(b, what)
                if FOLDER and sim:
                    shots(b)
                phone(b, what)
                if FOLDER and sim:
                    b.shoot(os.path.join(FOLDER, 'page-phone.png'))
                quiet(b, server, what)
                b.go('about:blank')
                server.stop()
            b.look(1180, 700, False)
            server = Server(folder, '-m', QWEN, '--device', 'cpu', '--api-key', 'right')
            keys(b, server)
            quiet(b, server, 'key', ignore='status of 401')
            b.go('about:blank')
            server.stop()
        except OSError as e:
            check(False, f'{str(e)[:300]}')
        finally:
            b.close()
            for process in Server.all:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    end('page')


main()

"""browser.py - a real browser for tests: Chromium without a window, driven over its DevTools protocol
(JSON messages over one WebSocket). Only what tests/check_page.py needs, with Python's own library."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request


def find():
    """The path of a Chromium or Chrome, or None."""
    for name in 'chromium', 'chromium-browser', 'google-chrome':
        path = shutil.which(name)
        if path:
            return path
    return None


class Socket:
    """A WebSocket to this machine: text messages, whole or in fragments."""

    def __init__(self, url):
        host, path = url.removeprefix('ws://').split('/', 1)
        name, port = host.split(':')
        self.s = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f'GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n'
                        f'Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n'
                        'Sec-WebSocket-Version: 13\r\n\r\n').encode())
        self.buffer = b''
        while b'\r\n\r\n' not in self.buffer:
            self.more()
        head, self.buffer = self.buffer.split(b'\r\n\r\n', 1)
        if b' 101 ' not in head.split(b'\r\n')[0]:
            raise OSError(f'no WebSocket: {head[:80]}')

    def more(self):
        got = self.s.recv(1 << 16)
        if not got:
            raise OSError('the browser has closed the connection')
        self.buffer += got

    def take(self, n):
        while len(self.buffer) < n:
            self.more()
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        head = bytes([0x81]) + (bytes([0x80 | n]) if n < 126 else
                                bytes([0x80 | 126]) + struct.pack('>H', n) if n < 65536 else
                                bytes([0x80 | 127]) + struct.pack('>Q', n))
        self.s.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def frame(self):
        first, n = self.take(2)
        n &= 127
        if n == 126:
            n = struct.unpack('>H', self.take(2))[0]
        elif n == 127:
            n = struct.unpack('>Q', self.take(8))[0]
        return first & 0x80, first & 15, self.take(n)

    def receive(self, seconds):
        """The next message, or None."""
        self.s.settimeout(seconds)
        data = b''
        try:
            while True:
                last, kind, part = self.frame()
                self.s.settimeout(60)
                if kind in (0, 1):
                    data += part
                    if last:
                        return data.decode()
                elif kind == 8:
                    raise OSError('the browser has closed the connection')
        except TimeoutError:
            return None


class Browser:
    """One window. What the page asks for, what it complains about: requests, complaints."""

    def __init__(self, program, folder):
        profile = os.path.join(folder, 'browser')
        self.log = open(os.path.join(folder, 'browser.log'), 'wb')
        self.process = subprocess.Popen(
            [program, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
             '--no-first-run', '--disable-background-networking', '--disable-component-update',
             '--hide-scrollbars', '--remote-debugging-port=0', f'--user-data-dir={profile}',
             'about:blank'], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        said = os.path.join(profile, 'DevToolsActivePort')
        for _ in range(600):
            if os.path.exists(said) and open(said).read().count('\n') >= 1:
                break
            time.sleep(0.1)
        port = open(said).read().split('\n')[0]
        pages = json.load(urllib.request.urlopen(f'http://127.0.0.1:{port}/json/list', timeout=60))
        page = next(p for p in pages if p['type'] == 'page')
        self.socket = Socket(page['webSocketDebuggerUrl'])
        self.n = 0
        self.requests, self.complaints, self.loads = [], [], 0
        for domain in 'Page', 'Runtime', 'Network', 'Log':
            self.call(f'{domain}.enable')

    def note(self, message):
        what, p = message.get('method'), message.get('params', {})
        if what == 'Network.requestWillBeSent':
            self.requests.append(p['request']['url'])
        elif what == 'Runtime.exceptionThrown':
            d = p['exceptionDetails']
            self.complaints.append(d.get('exception', {}).get('description', d['text']))
        elif what == 'Runtime.consoleAPICalled' and p['type'] in ('error', 'warning', 'assert'):
            self.complaints.append(' '.join(str(a.get('value')) for a in p['args']))
        elif what == 'Log.entryAdded' and p['entry']['level'] in ('error', 'warning'):
            self.complaints.append(p['entry']['text'])
        elif what == 'Page.loadEventFired':
            self.loads += 1

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({'id': self.n, 'method': method, 'params': params}))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            text = self.socket.receive(1)
            message = json.loads(text) if text else {}
            if message.get('id') == self.n:
                if 'error' in message:
                    raise OSError(f'{method}: {message["error"]["message"]}')
                return message['result']
            self.note(message)
        raise OSError(f'{method}: no answer')

    def run(self, script):
        """The value of an expression in the page."""
        r = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in r:
            raise OSError(f'{script}: {r["exceptionDetails"]}')
        return r['result'].get('value')

    def wait(self, script, seconds=30):
        """Until it is true. False: it never was."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.run(script):
                return True
            time.sleep(0.05)
        return False

    def settle(self, n):
        until = time.monotonic() + 60
        while self.loads <= n and time.monotonic() < until:
            text = self.socket.receive(0.2)
            if text:
                self.note(json.loads(text))

    def go(self, url):
        n = self.loads
        self.call('Page.navigate', url=url)
        self.settle(n)

    def reload(self):
        n = self.loads
        self.call('Page.reload')
        self.settle(n)

    def press(self, key, code):
        for kind in 'keyDown', 'keyUp':
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, text='\r' if code == 13 and kind == 'keyDown' else '')

    def type(self, selector, text):
        self.run(f'document.querySelector({json.dumps(selector)}).focus()')
        self.call('Input.insertText', text=text)

    def click(self, selector):
        """As a hand would: where the element is on the screen."""
        at = self.run('(() => { const e = document.querySelector(%s); if (!e) return null; '
                      'e.scrollIntoView({block: "nearest"}); const r = e.getBoundingClientRect(); '
                      'return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null; })()'
                      % json.dumps(selector))
        if not at:
            raise OSError(f'{selector}: cannot be clicked')
        for kind in 'mousePressed', 'mouseReleased':
            self.call('Input.dispatchMouseEvent', type=kind, x=at[0], y=at[1], button='left',
                      clickCount=1)

    def look(self, width, height, dark):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])

    def shoot(self, path):
        image = self.call('Page.captureScreenshot', format='png', optimizeForSpeed=False)
        with open(path, 'wb') as f:
            f.write(base64.b64decode(image['data']))

    def close(self):
        try:
            self.call('Browser.close')
        except OSError:
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

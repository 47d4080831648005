#!/usr/bin/env python3
"""bench_serve.py MODEL [--programs DIR] [--tokens N] [options of moe-serve and moe-run] - the costs of serving.

Streams an answer and compares its speed with moe-run's. Then takes a conversation of N tokens (30,000) through two turns, kills
the server, starts it again and takes two more turns. Prints seconds until the first token, and how many tokens of the prompt
came from a cache. --drop: drops the page cache before the restart (needs root).
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


class Server:
    def __init__(self, args, options, env):
        with socket.socket() as s:                        # a free port
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = tempfile.TemporaryFile()
        self.run = subprocess.Popen([args.programs + "/moe-serve", "-m", args.model, "--listen", "127.0.0.1:%d" % self.port] + options,
                                    env=env, stdout=subprocess.DEVNULL, stderr=self.log)
        while not self.is_ready():
            if self.run.poll() is not None:
                self.log.seek(0)
                sys.exit("bench_serve: moe-serve ended: " + self.log.read().decode()[-500:])
            time.sleep(0.05)

    def is_ready(self):
        try:
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            link.request("GET", "/health")
            return link.getresponse().status == 200
        except OSError:
            return False

    def post(self, path, body):
        """Seconds, and the reply."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        text, began = json.dumps(body), time.perf_counter()
        link.request("POST", path, text, {"Content-Type": "application/json"})
        reply = link.getresponse()
        text, seconds = reply.read(), time.perf_counter() - began
        if reply.status != 200:
            sys.exit("bench_serve: %s: %d %s" % (path, reply.status, text[:300].decode()))
        return seconds, json.loads(text)

    def stream(self, n):
        """Tokens per second between the first and the last event of an answer of n tokens."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        link.request("POST", "/v1/completions", json.dumps({
            "prompt": "Once upon a time there was a", "max_tokens": n, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
        first = last = done = 0
        for line in link.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"]:
                last = time.perf_counter()
                first = first or last
            done = (event.get("usage") or {}).get("completion_tokens", done)
        return (done - 1) / (last - first)

    def stop(self, sig=signal.SIGTERM):
        self.run.send_signal(sig)
        self.run.wait()


def moe_run(args, options, env, n):
    if "--parallel" in options:                           # the server's alone
        i = options.index("--parallel")
        options = options[:i] + options[i + 2:]
    out = subprocess.run([args.programs + "/moe-run", "-m", args.model, "-p", "Once upon a time there was a", "-n", str(n), "--temp",
                          "0", "--raw", "--json"] + options, env=env, capture_output=True, text=True, check=True).stdout
    return json.loads(out.strip().split("\n")[-1])["tokens_per_second"]["answer"]


def text_of(server, tokens):
    words = [w for w in open(os.path.join(os.path.dirname(__file__), "../docs/design.md")).read().split()]
    rng = random.Random(7)
    some = " ".join(rng.choice(words) for _ in range(2000))
    per_word = len(server.post("/tokenize", {"content": some})[1]["tokens"]) / 2000
    return " ".join(rng.choice(words) for _ in range(int(tokens / per_word)))


def turn(server, messages, what, first_s):
    seconds, reply = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "temperature": 0})
    usage = reply["usage"]
    print("%-28s %8.3f s  %5.1f%%  %6d tokens, %6d of them cached" % (
        what, seconds, 100 * seconds / (first_s or seconds), usage["prompt_tokens"],
        usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)), flush=True)
    return seconds


def conversation(args, options, env, cache):
    server = Server(args, options, env)
    messages = [{"role": "user", "content": text_of(server, args.tokens)}]
    hello = [{"role": "user", "content": "Good morning. " * 12}]
    turn(server, hello, "(warming up)", 0)
    first = turn(server, messages, "first turn", 0)
    messages += [{"role": "assistant", "content": "Very well."}, {"role": "user", "content": "And then?"}]
    turn(server, messages, "second turn", first)
    time.sleep(args.wait)
    server.stop(signal.SIGKILL)
    files = [os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(cache + "/moe/prompts") for f in names]
    print("%-28s %8.1f MB in %d files" % ("on the drive", sum(files) / 1e6, len(files)))
    if args.drop:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("1")
    server = Server(args, options, env)
    turn(server, hello, "(warming up)", 0)
    messages += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "Go on."}]
    turn(server, messages, "third, killed before it", first)
    messages += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "More."}]
    turn(server, messages, "fourth turn", first)
    server.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--programs", default=".")
    p.add_argument("--tokens", type=int, default=30000)
    p.add_argument("--answer", type=int, default=400, help="tokens of the streamed answer; 0: none")
    p.add_argument("--wait", type=float, default=4, help="seconds for files to be written before the kill")
    p.add_argument("--drop", action="store_true")
    args, options = p.parse_known_args()
    cache = tempfile.mkdtemp(prefix="bench-serve-")
    speeds = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "moe/speeds.json")
    if os.path.exists(speeds):                            # the machine was measured
        os.makedirs(cache + "/moe")
        shutil.copy(speeds, cache + "/moe")
    env = dict(os.environ, XDG_CACHE_HOME=cache)
    try:
        if args.answer:
            server = Server(args, options, env)
            server.stream(args.answer)
            served = [server.stream(args.answer) for _ in range(5)]
            server.stop()
            alone = [moe_run(args, options, env, args.answer) for _ in range(5)]
            print("%-28s %8.1f tok/s  moe-run %.1f (medians of five)" % ("streamed", statistics.median(served),
                                                                       statistics.median(alone)), flush=True)
        conversation(args, options, env, cache)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main()

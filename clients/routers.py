"""Helpers of the router scripts: starts two servers of the built-in model and a router in front of them; checks.

A router is an executable; each script gets its path as an argument."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from served import check

MODEL = "served"
# A prefix of several blocks of 16 tokens.
LONG = "Here are some words that only make the prompt longer, for the sake of a prefix. " * 4
START_SECONDS = 120
# The built-in model adds correctly.
SUMS = [(7, 8), (12, 30), (5, 6), (20, 9)]


def free_port():
    """A TCP port of this machine that is free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url, body=None, headers=()):
    """Sends a GET, or a POST of `body` as JSON; returns the open response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **dict(headers)})
    return urllib.request.urlopen(request, timeout=60)


class Server:
    """A `kvasir serve` process, and the file of its log."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        self.url = None

    def wait(self):
        """Waits until the log has the server's address."""
        while self.url is None:
            text = self.log.read_text()
            check(f"the server started:\n{text}", self.process.poll() is None)
            words = text.replace(",", " ").split()
            self.url = next((word for word in words if word.startswith("http://")), None)
            time.sleep(0.05)

    def stream_address(self, kind):
        """The address of the first stream of this kind in the log."""
        found = next(line for line in self.log.read_text().splitlines() if f"{kind} at " in line)
        return found.split(f"{kind} at ")[1].split(",")[0].strip()

    def metric(self, name):
        """The sum of a metric over its labels."""
        with fetch(f"{self.url}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"kvasir:{name}{{"))

    def answer_count(self):
        """Waits until no request is open; returns the number of answered requests."""
        while self.metric("num_requests_open") > 0:
            time.sleep(0.01)
        return self.metric("request_success_total")


@contextlib.contextmanager
def running(command, log):
    """A process with its output in a file. Prints the end of the file if the block raises."""
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    except BaseException:
        print(f"{command[0]}:\n{log.read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def two_servers(*options):
    """Two servers of the built-in model."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        servers = []
        for number in range(2):
            log = pathlib.Path(name) / f"server-{number}.log"
            command = [os.environ["KVASIR_BINARY"], "serve", "--port", "0", "--threads", "1", "--model-name", MODEL]
            servers.append(Server(stack.enter_context(running([*command, *options], log)), log))
        for server in servers:
            server.wait()
        yield servers


def options(servers, policy, *more, command=()):
    """The options of a router over these servers, as a function of its port."""
    urls = [server.url for server in servers]

    def listening(port):
        # Routers of parallel tests must not have the same telemetry port.
        listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        return [*command, "--worker-urls", *urls, "--policy", policy, *listen, *more]

    return listening


@contextlib.contextmanager
def router(program, options):
    """A router on a free port, with `options(port)`. Waits until it answers a chat, and yields its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        log = pathlib.Path(name) / "router.log"
        with running([program, *options(port)], log) as process:
            until = time.monotonic() + START_SECONDS
            while not is_ready(url):
                check(f"the router started:\n{log.read_text()[-4000:]}", process.poll() is None)
                check(f"the router found its servers:\n{log.read_text()[-4000:]}", time.monotonic() < until)
                time.sleep(0.2)
            yield url


def is_ready(url):
    try:
        with fetch(f"{url}/v1/chat/completions", {**chat(1, 1), "max_tokens": 1}):
            return True
    except OSError:
        return False


def chat(a, b, before=""):
    """The body of a request that asks for a sum. `before` precedes the question."""
    content = f"{before}What is {a} + {b}?"
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24}


def answer(url, body, headers=()):
    """The text of an answer."""
    with fetch(f"{url}/v1/chat/completions", body, headers) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def streamed(url, body):
    """The text of a streamed answer, the number of chunks with text, and the finish reason."""
    pieces, finish, done = [], None, False
    with fetch(f"{url}/v1/chat/completions", {**body, "stream": True}) as response:
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            pieces.append(choice["delta"].get("content") or "")
            finish = choice.get("finish_reason") or finish
    check("the stream ends with [DONE]", done)
    return "".join(pieces), len([piece for piece in pieces if piece]), finish


def check_answers(url, servers):
    """Answers through the router equal those of a server: whole, streamed and concurrent."""
    for a, b in SUMS:
        expected = answer(servers[0].url, chat(a, b))
        check(f"{a} + {b}: {expected}", str(a + b) in expected)
        check(f"{a} + {b} through the router", answer(url, chat(a, b)) == expected)
        text, pieces, finish = streamed(url, chat(a, b))
        check(f"{a} + {b} as a stream: {text}", (text, finish) == (expected, "stop") and pieces > 1)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda sum: answer(url, chat(*sum)), SUMS * 8))
    check("concurrent answers are right", all(str(a + b) in text for (a, b), text in zip(SUMS * 8, texts)))
    try:
        fetch(f"{url}/v1/chat/completions", {**chat(1, 2), "temperature": -1})
        check("a wrong request is refused", False)
    except urllib.error.HTTPError as error:
        check(f"the refusal is passed on: {error.code}", error.code == 400)


def answer_counts(servers, send):
    """The number of requests of `send` that each server answers."""
    before = [server.answer_count() for server in servers]
    send()
    return [server.answer_count() - start for server, start in zip(servers, before)]


def check_affinity(servers, name, send, count):
    """Calls `send` `count` times; all requests must reach one server."""
    got = answer_counts(servers, lambda: [send() for _ in range(count)])
    check(f"all requests of {name} reach one server: {got}", sorted(got) == [0, count])


def check_spread(url, servers):
    """Answers of a router that takes turns are right, and come from both servers."""
    check_answers(url, servers)
    got = answer_counts(servers, lambda: [answer(url, chat(2, 3)) for _ in range(8)])
    check(f"both servers get requests: {got}", min(got) > 0)


def check_prefixes(url, servers):
    """Requests with the same long prefix reach one server."""
    for number in range(4):
        before = f"Conversation {number}. {LONG}"
        check_affinity(servers, f"prefix {number}", lambda: answer(url, chat(4, number, before)), 4)


def check_sessions(url, servers, header):
    """Requests with the same session key in `header` reach one server, and sessions are spread."""
    used = set()
    for number in range(8):
        key = {header: f"session-{number}"}
        got = answer_counts(servers, lambda: [answer(url, chat(3, n), key) for n in range(4)])
        check(f"all requests of session {number} reach one server: {got}", sorted(got) == [0, 4])
        used.add(got.index(4))
    check("sessions are spread over the servers", used == {0, 1})

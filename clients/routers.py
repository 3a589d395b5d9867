"""What the scripts of routers share: two servers of the built-in model, a router in front of them, and checks.

A router is a program of its own, in the same virtual environment as the script that starts it."""

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
START_SECONDS = 120
# The built-in model knows sums.
SUMS = [(7, 8), (12, 30), (5, 6), (20, 9)]


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url, body=None, headers=()):
    """The answer to a request, as an open connection."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **dict(headers)})
    return urllib.request.urlopen(request, timeout=60)


class Server:
    """A running `kvasir serve`, with its log."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        self.url = None

    def wait(self):
        """Waits until it serves."""
        while self.url is None:
            text = self.log.read_text()
            check(f"the server started:\n{text}", self.process.poll() is None)
            words = text.replace(",", " ").split()
            self.url = next((word for word in words if word.startswith("http://")), None)
            time.sleep(0.05)

    def stream(self, what):
        """The address of the first stream of this kind in the log."""
        found = next(line for line in self.log.read_text().splitlines() if f"{what} at " in line)
        return found.split(f"{what} at ")[1].split(",")[0].strip()

    def counted(self, name):
        """The sum of a counter."""
        with fetch(f"{self.url}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"kvasir:{name}{{"))

    def answered(self):
        """Number of requests that it has answered, once none is open."""
        while self.counted("num_requests_open") > 0:
            time.sleep(0.01)
        return self.counted("request_success_total")


@contextlib.contextmanager
def running(command, log):
    """A process with its output in a file; shown if something fails."""
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


@contextlib.contextmanager
def router(program, url, options):
    """A router at this address, once it answers for the model."""
    with tempfile.TemporaryDirectory() as name:
        log = pathlib.Path(name) / "router.log"
        with running([program, *options], log) as process:
            until = time.monotonic() + START_SECONDS
            while not is_ready(url):
                check(f"the router started:\n{log.read_text()[-4000:]}", process.poll() is None)
                check(f"the router found its servers:\n{log.read_text()[-4000:]}", time.monotonic() < until)
                time.sleep(0.2)
            yield


def is_ready(url):
    try:
        with fetch(f"{url}/v1/chat/completions", {**chat(1, 1), "max_tokens": 1}):
            return True
    except OSError:
        return False


def chat(a, b, before=""):
    """A chat about a sum, with a text before the question."""
    content = f"{before}What is {a} + {b}?"
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24}


def answer(url, body, headers=()):
    """The text of an answer."""
    with fetch(f"{url}/v1/chat/completions", body, headers) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def streamed(url, body):
    """The text of a streamed answer, its number of pieces, and its finish reason."""
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
    """Chats and streams, alone and at once, give what the servers give."""
    for a, b in SUMS:
        expected = answer(servers[0].url, chat(a, b))
        check(f"{a} + {b}: {expected}", str(a + b) in expected)
        check(f"{a} + {b} through the router", answer(url, chat(a, b)) == expected)
        text, pieces, finish = streamed(url, chat(a, b))
        check(f"{a} + {b} as a stream: {text}", (text, finish) == (expected, "stop") and pieces > 1)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda sum: answer(url, chat(*sum)), SUMS * 8))
    check("answers at once are right", all(str(a + b) in text for (a, b), text in zip(SUMS * 8, texts)))
    try:
        fetch(f"{url}/v1/chat/completions", {**chat(1, 2), "temperature": -1})
        check("a wrong request is refused", False)
    except urllib.error.HTTPError as error:
        check(f"the refusal is passed on: {error.code}", error.code == 400)


def shares(servers, send):
    """How many of the requests that this sends each server has answered."""
    before = [server.answered() for server in servers]
    send()
    return [server.answered() - start for server, start in zip(servers, before)]


def check_affinity(servers, what, send, count):
    """Requests of one group, of which this sends `count`, reach one server."""
    got = shares(servers, lambda: [send() for _ in range(count)])
    check(f"{what} keeps to one server: {got}", sorted(got) == [0, count])

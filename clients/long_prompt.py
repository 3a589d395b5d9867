"""A long prompt among streams: python3 clients/long_prompt.py http://127.0.0.1:8000 [--rounds N]

Each round measures the first token of the prompt alone, the inter-token latency of eight streams alone, and both
together. Limits of the ratios, together to alone: 1.5 for the first token, 4 for the 99th percentile of the inter-token
latency. The prompt is random ids, so that none of it is cached. The model needs a context as long as the prompt, and
ids below --vocabulary.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("url")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--prompt", type=int, default=4000, help="tokens of the long prompt")
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--vocabulary", type=int, default=100_000)
given = parser.parse_args()
host = urllib.parse.urlparse(given.url).netloc


def connect():
    return http.client.HTTPConnection(host, timeout=600)


def model():
    connection = connect()
    connection.request("GET", "/v1/models")
    return json.load(connection.getresponse())["data"][0]["id"]


MODEL = model()


def answer(prompt, tokens, into):
    """Streams an answer to a random prompt: (arrival, tokens so far) per event; returns the time of the request."""
    body = {
        "model": MODEL,
        "prompt": [random.randrange(given.vocabulary // 100, given.vocabulary) for _ in range(prompt)],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    connection = connect()
    asked = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    for line in response:
        if line.startswith(b"data: {"):
            now, event = time.monotonic(), json.loads(line[6:])
            if event["choices"]:
                into.append((now, event["usage"]["completion_tokens"]))
    return asked


def first_token():
    events = []
    asked = answer(given.prompt, 2, events)
    return asked, events[0][0]


def begin(tokens):
    """Starts the streams; gives their events and threads."""
    events = [[] for _ in range(given.streams)]
    threads = [threading.Thread(target=answer, args=(16, tokens, into)) for into in events]
    for thread in threads:
        thread.start()
    return events, threads


def between(events, start, end):
    """Times between tokens that each had an event: a token whose character is not complete waits for the next."""
    pairs = [pair for stream in events for pair in zip(stream, stream[1:])]
    return [b[0] - a[0] for a, b in pairs if b[1] == a[1] + 1 and b[0] > start and a[0] < end]


def late(times):
    return sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]


rounds = []
for _ in range(given.rounds):
    asked, came = first_token()
    alone = came - asked
    events, threads = begin(120)
    for thread in threads:
        thread.join()
    started = max(stream[4][0] for stream in events)
    quiet = late(between(events, started, float("inf")))
    events, threads = begin(420)
    time.sleep(3)
    asked, came = first_token()
    beside, busy = came - asked, late(between(events, asked, came))
    for thread in threads:
        thread.join()
    rounds.append((beside / alone, busy / quiet))
    print(
        f"first token {alone:.2f} s alone, {beside:.2f} s beside: {beside / alone:.2f} times; "
        f"p99 between tokens {quiet * 1e3:.0f} ms quiet, {busy * 1e3:.0f} ms beside: {busy / quiet:.2f} times",
        flush=True,
    )
first, tokens = (statistics.median(column) for column in zip(*rounds))
print(f"medians of {len(rounds)}: {first:.2f} and {tokens:.2f} times")

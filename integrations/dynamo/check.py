"""Dynamo's frontend in front of two workers: answers, streams, and routing by KV events.

`check.py PYTHON BINARY FOLDER` takes the Python interpreter of the frontend's environment, the worker's
executable, and the folder of the model."""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "clients"))
os.environ.setdefault("KVASIR_URL", "")
os.environ.setdefault("KVASIR_MODEL", "")
from routers import LONG, SUMS, check, fetch, free_port, running, streamed

python, binary, folder = sys.argv[1:]
MODEL = pathlib.Path(folder).name
START_SECONDS = 120
PREFIXES, REPEATS = 6, 4


def chat(a, b, before=""):
    messages = [{"role": "user", "content": f"{before}What is {a} + {b}?"}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24}


def complete(url, body):
    with fetch(f"{url}/v1/chat/completions", body) as response:
        return json.load(response)


def text(completion):
    return completion["choices"][0]["message"]["content"]


def cached(completion):
    """Number of prompt tokens from the worker's prefix cache."""
    return ((completion["usage"] or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@contextlib.contextmanager
def fleet(work, mode):
    """A frontend and two workers with file-based discovery. Waits until the frontend has found both."""
    port = free_port()
    os.environ.update(
        DYN_DISCOVERY_BACKEND="file", DYN_FILE_KV=str(work / f"discovery-{mode}"), DYN_REQUEST_PLANE="tcp",
        DYN_EVENT_PLANE="zmq", DYN_LOG="info", DYN_TCP_RPC_HOST="127.0.0.1", HF_HUB_OFFLINE="1",
        DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS="0")
    (work / f"discovery-{mode}").mkdir()
    frontend = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    frontend += ["--router-mode", mode, "--kv-cache-block-size", "16"]
    worker = [binary, "--model-path", folder, "--weights", "built-in", "--threads", "1", "--kv-capacity", "8192"]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(running(frontend, work / f"frontend-{mode}.log"))]
        for number in range(2):
            processes.append(stack.enter_context(running(worker, work / f"worker-{mode}-{number}.log")))
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while workers(url) < 2:
            check("all processes run", all(process.poll() is None for process in processes))
            check("the frontend found both workers", time.monotonic() < until)
            time.sleep(0.5)
        yield url


def workers(url):
    """Number of workers that the frontend has found; 0 until it answers a chat."""
    try:
        with fetch(f"{url}/health") as response:
            instances = json.load(response).get("instances", [])
        complete(url, {**chat(1, 1), "max_tokens": 1})
    except OSError:
        return 0
    return len([instance for instance in instances if instance.get("endpoint") == "generate"])


def misses(url):
    """For each prefix, the number of its `REPEATS` requests without a cache hit."""
    counts = []
    for number in range(PREFIXES):
        body = chat(4, number, f"Conversation {number}. {LONG}")
        missed = 0
        for _ in range(REPEATS):
            missed += cached(complete(url, body)) == 0
            # KV events take a moment to reach the router.
            time.sleep(0.3)
        counts.append(missed)
    return counts


with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    with fleet(work, "kv") as url:
        for a, b in SUMS:
            answer = text(complete(url, chat(a, b)))
            check(f"{a} + {b}: {answer}", str(a + b) in answer)
            whole, pieces, finish = streamed(url, chat(a, b))
            check(f"{a} + {b} as a stream: {whole}", (whole, finish) == (answer, "stop") and pieces > 1)
        with_kv_events = misses(url)
        print(f"kv: cache misses of {REPEATS} requests, per prefix: {with_kv_events}")
        check("repeated prefixes reach one worker", max(with_kv_events) <= 1)
    with fleet(work, "round-robin") as url:
        round_robin = misses(url)
        print(f"round-robin: cache misses of {REPEATS} requests, per prefix: {round_robin}")
        check("round robin uses both workers", min(round_robin) == 2)
print("passed  dynamo")

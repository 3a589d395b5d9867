"""SMG in front of two servers: chats, streams, loads, and prefix and session affinity.

`smg_client.py SMG` takes the path of the executable."""

import json
import sys
import time

from routers import answer, answer_counts, chat, check_affinity, check_answers, fetch, free_port, router, two_servers
from served import check

LONG = "Here are some words that only make the prompt longer, for the sake of a prefix. " * 4


def options(servers, port, policy):
    urls = [server.url for server in servers]
    # Routers of parallel tests must not have the same telemetry port.
    listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return ["launch", "--worker-urls", *urls, "--policy", policy, *listen]


def loads(url):
    """The loads that the router has read from /v1/loads of its servers."""
    with fetch(f"{url}/get_loads") as page:
        return json.load(page)["loads"]


smg = sys.argv[1]
with two_servers() as servers:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(smg, url, options(servers, port, "round_robin")):
        check_answers(url, servers)
        got = answer_counts(servers, lambda: [answer(url, chat(2, 3)) for _ in range(8)])
        check(f"both servers get requests: {got}", min(got) > 0)
        until = time.monotonic() + 60
        while len(known := loads(url)) < 2:
            check(f"the router reads the load of both servers: {known}", time.monotonic() < until)
            time.sleep(0.2)
        check(f"their loads have a capacity: {known}", all(load["max_total_num_tokens"] > 0 for load in known))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(smg, url, options(servers, port, "cache_aware")):
        for number in range(4):
            before = f"Conversation {number}. {LONG}"
            check_affinity(servers, f"prefix {number}", lambda: answer(url, chat(4, number, before)), 4)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(smg, url, options(servers, port, "consistent_hashing")):
        used = set()
        for number in range(8):
            key = {"X-SMG-Routing-Key": f"session-{number}"}
            got = answer_counts(servers, lambda: [answer(url, chat(3, n), key) for n in range(4)])
            check(f"all requests of session {number} reach one server: {got}", sorted(got) == [0, 4])
            used.add(got.index(4))
        check("sessions are spread over the servers", used == {0, 1})

"""SMG in front of two servers: chats and streams; conversations and keys of sessions keep to one server.

`smg_client.py SMG` takes the path of the program."""

import json
import sys
import time

from routers import answer, chat, check_affinity, check_answers, fetch, free_port, router, shares, two_servers
from served import check

LONG = "Here are some words that only make the prompt longer, for the sake of a prefix. " * 4


def options(servers, port, policy):
    urls = [server.url for server in servers]
    # No telemetry port of its own is shared with another router.
    listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return ["launch", "--worker-urls", *urls, "--policy", policy, *listen]


def loads(url):
    """What the router knows of the load of its servers: it reads their /v1/loads."""
    with fetch(f"{url}/get_loads") as page:
        return json.load(page)["loads"]


smg = sys.argv[1]
with two_servers() as servers:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(smg, url, options(servers, port, "round_robin")):
        check_answers(url, servers)
        got = shares(servers, lambda: [answer(url, chat(2, 3)) for _ in range(8)])
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
            got = shares(servers, lambda: [answer(url, chat(3, n), key) for n in range(4)])
            check(f"session {number} keeps to one server: {got}", sorted(got) == [0, 4])
            used.add(got.index(4))
        check("sessions are spread over the servers", used == {0, 1})

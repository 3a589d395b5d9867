"""vllm-router in front of two servers: chats, streams, prefix and session affinity, and routing by KV events.

`vllm_router_client.py ROUTER` takes the path of the executable."""

import sys
import time

from routers import MODEL, answer, answer_counts, chat, check_affinity, check_answers, free_port, router, two_servers
from served import check

LONG = "Here are some words that only make the prompt longer, for the sake of a prefix. " * 4


def options(servers, port, policy):
    urls = [server.url for server in servers]
    listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return ["--worker-urls", *urls, "--policy", policy, *listen]


def event_options(servers):
    """The router's options with the addresses of each server's KV events and replays."""
    for server in servers:
        yield from ("--kv-event-source", f"{server.url}={server.stream_address('KV events of engine 0')}")
        yield from ("--kv-event-replay-source", f"{server.url}={server.stream_address('replay')}")


def routes_to_cached_prefix(url, servers, number):
    """Whether requests reach the server that has cached their prefix. Only KV events tell the router which one has."""
    # Events reach the router some time after the request that caused them.
    for attempt in range(10):
        body = chat(4, 5, f"Conversation {number}, attempt {attempt}. {LONG}")
        answer(servers[number].url, body)
        time.sleep(0.1 * (attempt + 1))
        got = answer_counts(servers, lambda: [answer(url, body) for _ in range(3)])
        if got[number] == 3:
            return True
    return False


program = sys.argv[1]
publishing = ["--cache", "paged", "--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://127.0.0.1:0"]
with two_servers(*publishing) as servers:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(program, url, options(servers, port, "round_robin")):
        check_answers(url, servers)
        got = answer_counts(servers, lambda: [answer(url, chat(2, 3)) for _ in range(8)])
        check(f"both servers get requests: {got}", min(got) > 0)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(program, url, options(servers, port, "cache_aware")):
        for number in range(4):
            before = f"Conversation {number}. {LONG}"
            check_affinity(servers, f"prefix {number}", lambda: answer(url, chat(4, number, before)), 4)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with router(program, url, options(servers, port, "consistent_hash")):
        used = set()
        for number in range(8):
            session = {"x-session-id": f"session-{number}"}
            got = answer_counts(servers, lambda: [answer(url, chat(3, n), session) for n in range(4)])
            check(f"all requests of session {number} reach one server: {got}", sorted(got) == [0, 4])
            used.add(got.index(4))
        check("sessions are spread over the servers", used == {0, 1})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    model = ["--kv-event-model", MODEL, "--kv-event-block-size", "16"]
    with router(program, url, [*options(servers, port, "kv_aware"), *model, *event_options(servers)]):
        for number in (0, 1, 0, 1):
            check(f"requests follow the KV events of server {number}", routes_to_cached_prefix(url, servers, number))

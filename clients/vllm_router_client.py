"""vllm-router in front of two servers: chats, streams, prefix and session affinity, and routing by KV events.

`vllm_router_client.py ROUTER` takes the path of the executable."""

import sys
import time

from routers import (
    LONG,
    MODEL,
    answer,
    answer_counts,
    chat,
    check_prefixes,
    check_sessions,
    check_spread,
    options,
    router,
    two_servers,
)
from served import check


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
    with router(program, options(servers, "round_robin")) as url:
        check_spread(url, servers)
    with router(program, options(servers, "cache_aware")) as url:
        check_prefixes(url, servers)
    with router(program, options(servers, "consistent_hash")) as url:
        check_sessions(url, servers, "x-session-id")
    model = ["--kv-event-model", MODEL, "--kv-event-block-size", "16"]
    with router(program, options(servers, "kv_aware", *model, *event_options(servers))) as url:
        for number in (0, 1, 0, 1):
            check(f"requests follow the KV events of server {number}", routes_to_cached_prefix(url, servers, number))

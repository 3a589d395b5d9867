"""SMG in front of two servers: chats, streams, loads, and prefix and session affinity.

`smg_client.py SMG` takes the path of the executable."""

import json
import sys
import time

from routers import check_prefixes, check_sessions, check_spread, fetch, free_port, router, two_servers
from served import check


def options(servers, policy):
    urls = [server.url for server in servers]

    def listening(port):
        # Routers of parallel tests must not have the same telemetry port.
        listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        return ["launch", "--worker-urls", *urls, "--policy", policy, *listen]

    return listening


def loads(url):
    """The loads that the router has read from /v1/loads of its servers."""
    with fetch(f"{url}/get_loads") as page:
        return json.load(page)["loads"]


smg = sys.argv[1]
with two_servers() as servers:
    with router(smg, options(servers, "round_robin")) as url:
        check_spread(url, servers)
        until = time.monotonic() + 60
        while len(known := loads(url)) < 2:
            check(f"the router reads the load of both servers: {known}", time.monotonic() < until)
            time.sleep(0.2)
        check(f"their loads have a capacity: {known}", all(load["max_total_num_tokens"] > 0 for load in known))
    with router(smg, options(servers, "cache_aware")) as url:
        check_prefixes(url, servers)
    with router(smg, options(servers, "consistent_hashing")) as url:
        check_sessions(url, servers, "X-SMG-Routing-Key")

"""SMG in front of two servers: chats, streams, loads, and prefix and session affinity.

`smg_client.py SMG` takes the path of the executable."""

import json
import sys
import time

from routers import check_prefixes, check_sessions, check_spread, fetch, options, router, two_servers
from served import check


def loads(url):
    """The loads that the router has read from /v1/loads of its servers."""
    with fetch(f"{url}/get_loads") as page:
        return json.load(page)["loads"]


smg = sys.argv[1]
with two_servers() as servers:
    with router(smg, options(servers, "round_robin", command=["launch"])) as url:
        check_spread(url, servers)
        until = time.monotonic() + 60
        while len(known := loads(url)) < 2:
            check(f"the router reads the load of both servers: {known}", time.monotonic() < until)
            time.sleep(0.2)
        check(f"their loads have a capacity: {known}", all(load["max_total_num_tokens"] > 0 for load in known))
    with router(smg, options(servers, "cache_aware", command=["launch"])) as url:
        check_prefixes(url, servers)
    with router(smg, options(servers, "consistent_hashing", command=["launch"])) as url:
        check_sessions(url, servers, "X-SMG-Routing-Key")

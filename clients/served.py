"""Helpers of all client scripts: a tool, `check`, metrics, and the server that KVASIR_URL and KVASIR_MODEL name.

Requests are greedy or seeded and no check depends on time, so results are reproducible."""

import os
import sys
import time
import urllib.request

URL = os.environ["KVASIR_URL"]
MODEL = os.environ["KVASIR_MODEL"]

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def check(what, right):
    """Ends the script with a line that says what went wrong."""
    if not right:
        sys.exit(f"FAILED: {what}")


def counted(name):
    """The sum of a counter or gauge of the server's."""
    with urllib.request.urlopen(f"{URL}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"kvasir:{name}"))


def complete():
    """Number of answers that ended by length, counted once no request is open. Aborted ones do not count."""
    while counted("num_requests_open") > 0:
        time.sleep(0.01)
    return counted(f'request_success_total{{model_name="{MODEL}",finished_reason="length"')

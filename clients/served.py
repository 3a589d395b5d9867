"""What every client script shares: a tool, how a check reports, and where the server is, which KVASIR_URL and KVASIR_MODEL say."""

import os
import sys
import time

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


def idle(client):
    """Whether a request is answered promptly: nothing that was left behind is still being worked on ahead of it."""
    started = time.monotonic()
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=1)
    return time.monotonic() - started < 10

"""Measures prefix cache reuse in a conversation of an agent, which sends all messages again in every turn.

    conversation.py URL [--turns 20] [--words 120] [--tokens 24] [--key KEY]

1. Turns: each appends an answer, a tool call and the tool's result.
2. Edits: each sends the conversation up to a tool result whose text has changed.
3. Shared text: three prompts. The second and the third have only the first part of the first one's text.

Each line has the prompt's tokens, how many of them were computed (not cached), the time to the first token (TTFT) and
the reason why the cached prefix ended, if the server reports one.

The server must support OpenAI's chat API with `stream_options.include_usage`; llama.cpp's server does, too.
"""

import argparse
import json
import random
import statistics
import sys
import time
import urllib.error
import urllib.request
from typing import NamedTuple

WORDS = "the a file line test error build cache row block token value time state path name list text read write".split()
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class Completion(NamedTuple):
    """An answer with its measurements."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft: float  # seconds
    cache_end: str

    @property
    def computed_tokens(self):
        """Prompt tokens that were not cached."""
        return self.prompt_tokens - self.cached_tokens


class ChatClient:
    """A client of OpenAI's chat API, with the server's first model."""

    def __init__(self, url, key):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.model = json.load(self.send("/v1/models"))["data"][0]["id"]

    def send(self, path, body=None):
        """Sends a request, `POST` if it has a body; returns the response."""
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, self.headers), timeout=600)

    def complete(self, messages, max_tokens):
        """Completes a chat. Without a token, the TTFT is the time of the whole answer."""
        body = {
            "model": self.model,
            "messages": messages,
            "tools": [TOOL],
            "tool_choice": "none",
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, ttft, prompt, cached, cache_end = "", None, 0, 0, ""
        start = time.monotonic()
        with self.send("/v1/chat/completions", body) as lines:
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    content = choice["delta"].get("content") or ""
                    if ttft is None and (content or choice["delta"].get("reasoning_content")):
                        ttft = time.monotonic() - start
                    text += content
                usage = event.get("usage") or {}
                prompt = usage.get("prompt_tokens", prompt)
                details = usage.get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens", cached)
                cache_end = details.get("cache_end", cache_end)
                # llama.cpp's name.
                cached = event.get("timings", {}).get("cache_n", cached)
        ttft = ttft if ttft is not None else time.monotonic() - start
        return Completion(text, prompt, cached, ttft, cache_end)


def random_text(seed, count):
    """A text of `count` words, the same for equal seeds."""
    choices = random.Random(seed)
    return " ".join(choices.choice(WORDS) for _ in range(count))


def print_completion(name, completion):
    """Prints the line of one prompt."""
    print(f"{name:<28} {completion.prompt_tokens:>7} tokens {completion.computed_tokens:>7} computed "
          f"{1000 * completion.ttft:>9.0f} ms  {completion.cache_end}".rstrip(), flush=True)


def print_medians(name, completions):
    """Prints the medians of several prompts, if there are any."""
    if not completions:
        return
    computed = statistics.median(completion.computed_tokens for completion in completions)
    ttft = statistics.median(completion.ttft for completion in completions)
    print(f"{name}: {computed:.0f} tokens computed, {1000 * ttft:.0f} ms to the first token (medians)")


def main():
    """Reads the options, and ends with a message if the server cannot be reached or refuses a request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--words", type=int, default=120, help="words of a tool result")
    parser.add_argument("--tokens", type=int, default=24, help="maximum tokens of an answer")
    parser.add_argument("--key", help="API key")
    options = parser.parse_args()
    try:
        measure(options)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.url}: {error.code}: {error.read(1000).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{options.url}: {error}")


def measure(options):
    """Runs the three parts."""
    client = ChatClient(options.url, options.key)

    messages = [
        {"role": "system", "content": random_text("system", 400)},
        {"role": "user", "content": random_text("task", 60)},
    ]
    turns = []
    for turn in range(options.turns):
        completion = client.complete(messages, options.tokens)
        print_completion(f"turn {turn + 1}", completion)
        turns.append(completion)
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/{turn}.rs"})}
        call = {"id": f"call-{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": completion.text, "tool_calls": [call]})
        tool_result = random_text(f"result {turn}", options.words)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": tool_result})
    print_medians("turns after the first", turns[1:])

    edits = []
    # Odd indices above 2 are tool results.
    for index in range(3, len(messages), max(2, len(messages) // 8 // 2 * 2)):
        edited = dict(messages[index], content=random_text(f"edit {index}", options.words))
        completion = client.complete([*messages[:index], edited], options.tokens)
        print_completion(f"message {index + 1} edited", completion)
        edits.append(completion)
    print_medians("edited turns", edits)

    text = random_text("shared", 2000)
    for name, length, question in [
        ("shared text", len(text), "first"),
        ("about 100 words less", len(text) - 500, "second"),
        ("about 100 words less, again", len(text) - 500, "third"),
    ]:
        content = f"{text[:length]}\n{random_text(question, 20)}"
        completion = client.complete([{"role": "user", "content": content}], options.tokens)
        print_completion(name, completion)


if __name__ == "__main__":
    main()

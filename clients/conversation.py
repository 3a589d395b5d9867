"""Measures prefix reuse: a conversation of an agent, whose every turn sends all messages again.

    conversation.py URL [--turns 20] [--words 120] [--key KEY]

Turns of a task, answers with a tool call, and tool results follow one another. Then some turns are edited or branched:
the conversation is sent again up to a message, with other text in it. Last, prompts share a text of which the second
one takes less. Each line has the prompt's tokens, those that were read again, and the time to the first token.

The server must speak OpenAI's chat API with `stream_options.include_usage`; llama.cpp's server does, too.
"""

import argparse
import json
import random
import statistics
import time
import urllib.request

WORDS = "the a file line test error build cache row block token value time state path name list text read write".split()
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class Server:
    """A chat API that counts the tokens of prompts."""

    def __init__(self, url, key):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.model = json.load(self.open("/v1/models"))["data"][0]["id"]

    def open(self, path, body=None):
        """Sends a request, `POST` if it has a body."""
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, self.headers), timeout=600)

    def answer(self, messages, tokens):
        """Returns the answer's text, the prompt's tokens, those of them that were cached, and the seconds to the
        first token."""
        body = {
            "model": self.model,
            "messages": messages,
            "tools": [TOOL],
            "tool_choice": "none",
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, first, prompt, cached = "", None, 0, 0
        begin = time.monotonic()
        with self.open("/v1/chat/completions", body) as lines:
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content") or choice["delta"].get("reasoning_content")
                    if piece and first is None:
                        first = time.monotonic() - begin
                    text += choice["delta"].get("content") or ""
                usage = event.get("usage") or {}
                prompt = usage.get("prompt_tokens", prompt)
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", cached)
                cached = event.get("timings", {}).get("cache_n", cached)
        return text, prompt, cached, first if first is not None else time.monotonic() - begin


def words(seed, count):
    """A text that depends on the seed alone."""
    choices = random.Random(seed)
    return " ".join(choices.choice(WORDS) for _ in range(count))


def show(name, result):
    """Prints one line; returns the tokens that were read again and the seconds."""
    _, prompt, cached, seconds = result
    print(f"{name:<28} {prompt:>7} tokens {prompt - cached:>7} read {1000 * seconds:>9.0f} ms", flush=True)
    return prompt - cached, seconds


def main():
    """Runs the conversation."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("--turns", type=int, default=20)
    arguments.add_argument("--words", type=int, default=120, help="words of a tool result")
    arguments.add_argument("--tokens", type=int, default=24, help="tokens of an answer")
    arguments.add_argument("--key")
    options = arguments.parse_args()
    server = Server(options.url, options.key)

    messages = [
        {"role": "system", "content": words("system", 400)},
        {"role": "user", "content": words("task", 60)},
    ]
    read, times = [], []
    for turn in range(options.turns):
        result = server.answer(messages, options.tokens)
        tokens, seconds = show(f"turn {turn + 1}", result)
        read.append(tokens)
        times.append(seconds)
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/{turn}.rs"})}
        call = {"id": f"call-{turn}", "type": "function", "function": call}
        messages.append({"role": "assistant", "content": result[0], "tool_calls": [call]})
        tool_result = words(f"result {turn}", options.words)
        messages.append({"role": "tool", "tool_call_id": f"call-{turn}", "content": tool_result})
    print(f"turns after the first: {statistics.median(read[1:]):.0f} tokens read, "
          f"{1000 * statistics.median(times[1:]):.0f} ms to the first token (medians)")

    read, times = [], []
    for at in range(3, len(messages), max(2, len(messages) // 8 // 2 * 2)):
        edited = messages[:at] + [dict(messages[at], content=words(f"edit {at}", options.words))]
        tokens, seconds = show(f"message {at + 1} edited", server.answer(edited, options.tokens))
        read.append(tokens)
        times.append(seconds)
    print(f"edited turns: {statistics.median(read):.0f} tokens read, "
          f"{1000 * statistics.median(times):.0f} ms to the first token (medians)")

    text = words("shared", 2000)
    for name, length, question in [
        ("a shared text", len(text), "first"),
        ("100 words less", len(text) - 500, "second"),
        ("100 words less, again", len(text) - 500, "third"),
    ]:
        content = f"{text[:length]}\n{words(question, 20)}"
        show(name, server.answer([{"role": "user", "content": content}], options.tokens))


if __name__ == "__main__":
    main()

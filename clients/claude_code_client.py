"""Claude Code in print mode and its default configuration: shell, file reader and deferred tools.

`claude_code_client.py CLAUDE` takes the path of the program. The client asks for 128,000 tokens of
answer, which do not fit the context beside the prompt. So every request is refused once, and the
client repeats it with what the refusal says is left."""

import json
import pathlib
import sys
import tempfile

from coding_agents import home, run, serving
from scripted_model import call
from served import check

# The client's default, so that it needs no setting.
MODEL = "claude-opus-5-5"


def turn(what, words, work, environment):
    """The events of one turn and its last, the result."""
    command = [claude, *words, "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose"]
    events = [json.loads(line) for line in run(what, command, work, environment).splitlines()]
    result = next(event for event in events if event["type"] == "result")
    check(f"{what} ended well: {result}", result["subtype"] == "success" and not result["is_error"])
    blocks = [block for event in events if event["type"] == "user" for block in event["message"]["content"]]
    return [block for block in blocks if block["type"] == "tool_result"], result


claude = sys.argv[1]
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    note = folder / "agent/work/note.txt"
    replies = [
        call("Bash", command="echo heard-in-the-shell", description="Repeats the words"),
        "The shell repeated the words.",
        call("Read", file_path=str(note)),
        "The note has one line.",
        call("ToolSearch", query="select:WebFetch"),
        "Pages can be fetched now.",
    ]
    with serving(folder, MODEL, replies) as server:
        environment, work = home(folder / "agent", ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="none")
        note.write_text("milk and bread\n")
        results, end = turn("first turn", ["-p", "Repeat the words in a shell."], work, environment)
        check(f"the command ran: {results}", [r["content"] for r in results] == ["heard-in-the-shell"])
        check(f"first answer: {end}", end["result"] == replies[1])
        first = server.counted("prompt_tokens_computed_total")
        results, end = turn("continued", ["-p", "--continue", "What is in the note?"], work, environment)
        check(f"the file was read: {results}", len(results) == 1 and "milk and bread" in results[0]["content"])
        check(f"second answer: {end}", end["result"] == replies[3])
        check("four answers", server.counted("request_success_total") == 4)
        second = server.counted("prompt_tokens_computed_total") - first
        check(f"{second} tokens of the history computed again", second < first / 10)
        check("the cache is reported", end["usage"]["cache_read_input_tokens"] > first)
        results, end = turn("a tool is found", ["-p", "--continue", "Can you fetch pages?"], work, environment)
        found = [{"type": "tool_reference", "tool_name": "WebFetch"}]
        check(f"the reference came: {results}", [r["content"] for r in results] == [found])
        check(f"third answer: {end}", end["result"] == replies[5])

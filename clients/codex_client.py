"""Codex CLI in its default configuration: shell, namespaced tool, resumed session, free-form patch.

`codex_client.py CODEX` takes the path of the program."""

import json
import pathlib
import sys
import tempfile

from coding_agents import home, run, serving
from scripted_model import call
from served import check

CONFIG = """
model = "{model}"
model_provider = "kvasir"
[model_providers.kvasir]
name = "Kvasir"
base_url = "{url}/v1"
wire_api = "responses"
"""
SHELL = [
    call("exec_command", cmd="echo heard-in-the-shell"),
    "The shell repeated the words.",
    call("multi_agent_v1__wait_agent", targets=["a-stranger"], timeout_ms=10000),
    "There is no agent of that name.",
]
PATCH = "*** Begin Patch\n*** Add File: greeting.txt\n+good morning\n*** End Patch\n"
FREE_FORM = [call("apply_patch", input=PATCH), "The file is written."]
# A model whose name the client knows is offered `apply_patch` as a free-form tool; others are not.
KNOWN_MODEL = "gpt-5.5"
# The client's default model gets its tools in an item of the input, and runs commands from a script.
DEFAULT_MODEL = "gpt-6.2-sol"
SCRIPT = 'const done = await tools.exec_command({cmd: "echo heard-in-the-script"}); text(done.output)'
INPUT_TOOLS = [call("functions__exec", input=SCRIPT), "The script repeated the words."]


def configured(folder, model, url):
    settings = folder / "codex"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(CONFIG.format(model=model, url=url))
    return home(folder, CODEX_HOME=str(settings))


def turn(what, words, work, environment):
    """The items of one turn, by their type."""
    lines = run(what, [*words, "--json"], work, environment).splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    check(f"{what} has no errors:\n{lines}", not any(event["type"] in ("error", "turn.failed") for event in events))
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return {item["type"]: item for item in items}


codex = sys.argv[1]
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    with serving(folder, "scripted", SHELL) as server:
        environment, work = configured(folder / "shell", "scripted", server.url)
        items = turn("first turn", [codex, "exec", "Repeat the words in a shell."], work, environment)
        ran = items["command_execution"]
        check(f"the command ran: {ran}", ran["exit_code"] == 0 and "heard-in-the-shell" in ran["aggregated_output"])
        check(f"first answer: {items}", items["agent_message"]["text"] == SHELL[1])
        first = server.counted("prompt_tokens_computed_total")
        items = turn("resumed", [codex, "exec", "resume", "--last", "Wait for the stranger."], work, environment)
        check(f"second answer: {items}", items["agent_message"]["text"] == SHELL[3])
        check("four requests", server.counted("request_success_total") == 4)
        second = server.counted("prompt_tokens_computed_total") - first
        check(f"{second} tokens of the history computed again", second < first / 10)

    with serving(folder, KNOWN_MODEL, FREE_FORM) as server:
        environment, work = configured(folder / "patch", KNOWN_MODEL, server.url)
        command = [codex, "exec", "--sandbox", "workspace-write", "Write a greeting to a file."]
        items = turn("patch", command, work, environment)
        check(f"answer after the patch: {items}", items["agent_message"]["text"] == FREE_FORM[1])
        check(f"the patch was applied: {items}", (work / "greeting.txt").read_text() == "good morning\n")

    with serving(folder, DEFAULT_MODEL, INPUT_TOOLS) as server:
        environment, work = configured(folder / "script", DEFAULT_MODEL, server.url)
        items = turn("script", [codex, "exec", "Repeat the words in a script."], work, environment)
        output = items["command_execution"]["aggregated_output"]
        check(f"the script ran: {items}", "heard-in-the-script" in output)
        check(f"answer after the script: {items}", items["agent_message"]["text"] == INPUT_TOOLS[1])

"""Terminal agents over `/v1/chat/completions`, with tools on a scripted model.

`terminal_agents_client.py AGENT PROGRAM` takes a name of `AGENTS` and the path of the program. In the first turn the
agent runs a command that writes a file; in the second, which continues the session, it reads a file. An agent whose
`later` is None cannot continue a session outside a terminal: it reads the file in its first turn, after the command."""

import json
import pathlib
import sys
import tempfile

from coding_agents import CONTEXT, home, run, serving
from scripted_model import call
from served import check

MODEL = "scripted"
FIRST_ANSWER = "The words are in the file."
SECOND_ANSWER = "The note has one line."
COMMAND = "echo heard-in-the-shell > heard.txt"


class Qwen:
    """qwen-code."""

    # It begins each conversation with a canned assistant message, which the scripted model counts as a reply.
    canned_answers = 1
    tools = [
        call("run_shell_command", command=COMMAND, description="Writes the words", is_background=False),
        call("read_file", file_path="{work}/note.txt"),
    ]

    @staticmethod
    def configure(folder, url):
        # It would send requests to 127.0.0.1 through the proxy, too, so it runs without one.
        settings = folder / "home/.qwen"
        settings.mkdir()
        quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
        (settings / "settings.json").write_text(json.dumps(quiet))
        own = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
        return {**own, "HTTP_PROXY": "", "HTTPS_PROXY": ""}

    first = ["--yolo", "--auth-type", "openai"]
    later = [*first, "--continue"]


class Continue:
    """Continue's `cn`."""

    canned_answers = 0
    tools = [call("Bash", command=COMMAND), call("Read", filepath="{work}/note.txt")]

    @staticmethod
    def configure(folder, url):
        model = f"- {{name: m, provider: openai, model: {MODEL}, apiBase: {url}/v1, apiKey: none, roles: [chat], capabilities: [tool_use]}}"
        (folder / "config.yaml").write_text(f"name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  {model}\n")
        return {"CONTINUE_CONFIG": str(folder / "config.yaml")}

    first = ["-p", "--auto", "--config", "{folder}/config.yaml"]
    later = [*first, "--resume"]


class Pi:
    """pi."""

    canned_answers = 0
    tools = [call("bash", command=COMMAND), call("read", path="{work}/note.txt")]

    @staticmethod
    def configure(folder, url):
        model = {"id": MODEL, "contextWindow": CONTEXT, "maxTokens": 8192}
        provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}
        settings = folder / "home/.pi/agent"
        settings.mkdir(parents=True)
        (settings / "models.json").write_text(json.dumps({"providers": {"kvasir": provider}}))
        return {"PI_OFFLINE": "1"}

    first = ["-p", "--provider", "kvasir", "--model", MODEL]
    later = [*first, "--continue"]


class OpenCode:
    """opencode."""

    canned_answers = 0
    tools = [call("bash", command=COMMAND), call("read", filePath="{work}/note.txt")]

    @staticmethod
    def configure(folder, url):
        models = {MODEL: {"tool_call": True, "limit": {"context": CONTEXT, "output": 8192}}}
        options = {"baseURL": f"{url}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
        settings = folder / "home/.config/opencode"
        settings.mkdir(parents=True)
        (settings / "opencode.json").write_text(json.dumps({"provider": {"kvasir": provider}}))
        return {}

    first = ["run", "--model", f"kvasir/{MODEL}"]
    later = [*first, "--continue"]


class Cline:
    """Cline's command line."""

    # `--id`, which continues a session, requires a terminal.
    later = None

    canned_answers = 0
    tools = [call("run_commands", commands=[COMMAND]), call("read_files", files=[{"path": "{work}/note.txt"}])]

    @staticmethod
    def configure(folder, url):
        settings = folder / "home/.cline/data/settings"
        settings.mkdir(parents=True)
        name = "openai-compatible"
        own = {"provider": name, "apiKey": "none", "model": MODEL, "baseUrl": f"{url}/v1"}
        entry = {"settings": own, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
        chosen = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: entry}}
        (settings / "providers.json").write_text(json.dumps(chosen))
        # Telemetry would delay the end of the program by up to 10 s, as the proxy refuses it.
        (settings / "global-settings.json").write_text(json.dumps({"telemetryOptOut": True}))
        return {}

    first = []


AGENTS = {"qwen_code": Qwen, "continue": Continue, "pi": Pi, "opencode": OpenCode, "cline": Cline}


def main(agent, program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        work = folder / "work"
        paths = {"{folder}": str(folder), "{work}": str(work)}

        def with_paths(text):
            for mark, path in paths.items():
                text = text.replace(mark, path)
            return text

        def with_paths_of(texts):
            return [with_paths(text) for text in texts]

        shell, read = with_paths_of(agent.tools)
        first, later = with_paths_of(agent.first), agent.later and with_paths_of(agent.later)
        replies = [*["This is never said."] * agent.canned_answers, shell, FIRST_ANSWER, read, SECOND_ANSWER]
        if later is None:
            replies.remove(FIRST_ANSWER)
        with serving(folder, MODEL, replies) as server:
            environment, _ = home(folder)
            environment.update(agent.configure(folder, server.url))
            (work / "note.txt").write_text("milk and bread\n")
            output = run("first turn", [program, *first, "Write the words to a file."], work, environment)
            check("the command ran", (work / "heard.txt").read_text() == "heard-in-the-shell\n")
            if later is not None:
                check(f"first answer: {output}", FIRST_ANSWER in output)
                output = run("second turn", [program, *later, "What is in the note?"], work, environment)
            check(f"last answer: {output}", SECOND_ANSWER in output)
            answers = len(replies) - agent.canned_answers
            check("the server completed every answer", server.counted("request_success_total") >= answers)


if __name__ == "__main__":
    main(AGENTS[sys.argv[1]], sys.argv[2])

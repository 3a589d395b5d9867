"""Terminal agents over `/v1/chat/completions`, two turns with tools on a scripted model.

`terminal_agents_client.py AGENT PROGRAM` takes a name of `AGENTS` and the path of the program. In the first turn the
agent runs a command that writes a file; in the second, which continues the session, it reads a file."""

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


AGENTS = {"qwen_code": Qwen, "continue": Continue, "pi": Pi}


def main(agent, program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        work = folder / "work"
        paths = {"{folder}": str(folder), "{work}": str(work)}

        def with_paths(text):
            for mark, path in paths.items():
                text = text.replace(mark, path)
            return text

        shell, read = map(with_paths, agent.tools)
        replies = [*["This is never said."] * agent.canned_answers, shell, FIRST_ANSWER, read, SECOND_ANSWER]
        with serving(folder, MODEL, replies) as server:
            environment, _ = home(folder)
            environment.update(agent.configure(folder, server.url))
            (work / "note.txt").write_text("milk and bread\n")
            command = [program, *map(with_paths, agent.first), "Write the words to a file."]
            output = run("first turn", command, work, environment)
            check(f"first answer: {output}", FIRST_ANSWER in output)
            check("the command ran", (work / "heard.txt").read_text() == "heard-in-the-shell\n")
            command = [program, *map(with_paths, agent.later), "What is in the note?"]
            output = run("second turn", command, work, environment)
            check(f"second answer: {output}", SECOND_ANSWER in output)
            check("four answers at least", server.counted("request_success_total") >= 4)


if __name__ == "__main__":
    main(AGENTS[sys.argv[1]], sys.argv[2])

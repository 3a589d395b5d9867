"""Converts config, tokenizer and chat template of a GGUF file to the Hugging Face layout, for Dynamo's frontend.

  model_folder.py FILE.gguf FOLDER

The tokenizer must be byte-level BPE with Qwen2's pretokenizer, like that of the built-in model. The weights stay in the
GGUF file."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "clients"))
from scripted_model import CONTROL, USER_DEFINED, Metadata

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+")


def tokenizer(values):
    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": kind == CONTROL}
        for number, (token, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER_DEFINED)]
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", **byte_level}]},
        "post_processor": {"type": "ByteLevel", **byte_level},
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": values["tokenizer.ggml.merges"]},
    }


def write(file, folder):
    values = Metadata(pathlib.Path(file).read_bytes()).values
    found = values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"]
    if found != ("gpt2", "qwen2"):
        sys.exit(f"{file}: the tokenizer `{found}` is not supported; use a file with gpt2, qwen2")
    end = values["tokenizer.ggml.eos_token_id"]
    config = json.loads(values["kvasir.config"])
    files = {
        "config.json": {**config, "eos_token_id": end},
        "generation_config.json": {"eos_token_id": end, "temperature": 0},
        "tokenizer.json": tokenizer(values),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": values["tokenizer.ggml.tokens"][end],
            "model_max_length": config["max_position_embeddings"], "clean_up_tokenization_spaces": False,
            "chat_template": values["tokenizer.chat_template"]},
    }
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))


if __name__ == "__main__":
    write(*sys.argv[1:])

"""Perplexity beside llama.cpp's on the same files: `python perplexity.py OUT --kvasir BINARY --llama LLAMA_PERPLEXITY`.

OUT is the output of train.py. The text is that of held-out conversations, without the chat format. As in llama.cpp, the
second half of each chunk of 512 tokens counts.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import tempfile

import numpy as np

import corpus

TYPES = ["bf16", "q8_0", "q4_0", "q4_k_m"]
CHUNK = 512


def held_out_text(seed, characters):
    said = []
    for talk in corpus.stream(seed=seed, held_out=True):
        if sum(map(len, said)) > characters:
            return "\n".join(said)
        if not talk.tools:
            said += [message["content"] for message in talk.messages]


def ours(binary, model, chunks, precision):
    loss, count = 0.0, 0
    for chunk in chunks:
        ids = ",".join(map(str, chunk))
        out = subprocess.run([binary, "logits", model, "--prompt-ids", ids, "--all", "--json", "--precision", precision],
                             capture_output=True, text=True, check=True)
        rows = np.array(json.loads(out.stdout)["logits"], dtype=np.float64)[CHUNK // 2:-1]
        top = rows.max(axis=1)
        chosen = rows[np.arange(len(rows)), chunk[CHUNK // 2 + 1:]]
        loss += (top + np.log(np.exp(rows - top[:, None]).sum(axis=1)) - chosen).sum()
        count += len(rows)
    return math.exp(loss / count)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model", type=pathlib.Path)
    args.add_argument("--kvasir", required=True)
    args.add_argument("--llama", required=True)
    args.add_argument("--seed", type=int, default=5, help="which conversations the text is taken from")
    args.add_argument("--characters", type=int, default=24_000, help="length of the text")
    args = args.parse_args()
    text = held_out_text(args.seed, args.characters)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "text.txt")
        file.write_text(text)
        for kind in TYPES:
            model = f"{folder}/{kind}.gguf"
            subprocess.run([args.kvasir, "convert", args.model, model, "--dtype", kind], check=True, capture_output=True)
            out = subprocess.run([args.kvasir, "tokenize", model, "--json"], input=json.dumps([text]), capture_output=True, text=True, check=True)
            ids = json.loads(out.stdout)[0]
            chunks = [ids[i:i + CHUNK] for i in range(0, len(ids) - CHUNK + 1, CHUNK)]
            out = subprocess.run([args.llama, "-m", model, "-f", file, "-c", str(CHUNK)], capture_output=True, text=True, check=True)
            theirs = float(re.search(r"PPL = ([\d.]+)", out.stdout + out.stderr)[1])
            for precision in ["auto", "exact"]:
                mine = ours(args.kvasir, model, chunks, precision)
                print(f"{kind:7} {precision:6} {mine:9.4f}   llama.cpp {theirs:9.4f}   {100 * (mine / theirs - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()

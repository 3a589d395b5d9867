"""Asks the held-out questions: `python score.py MODEL_DIR [--each N]`, or `python score.py --kvasir BINARY [MODEL]`.

With `--kvasir` the engine answers, by its built-in model unless one is named; without it the training code does. A
conversation is right if the last answer equals the expected one, a tool call if name and arguments do.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess

import chatml
import corpus

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)


def questions(each):
    """Held-out talks cut before an answer of the assistant: (kind, prompt text, expected text)."""
    counts = collections.Counter()
    for talk in corpus.stream(seed=99, held_out=True):
        if sum(counts.values()) == each * len(corpus.KINDS):
            return
        kind = talk.kind
        if counts[kind] >= each:
            continue
        counts[kind] += 1
        parts = chatml.segments(talk.messages, talk.tools)
        last = [i for i, (_, learn) in enumerate(parts) if learn]
        at = last[-1] if kind != "tools" or counts[kind] % 2 else last[0]
        yield kind, "".join(text for text, _ in parts[:at]), parts[at][0].removesuffix("<|im_end|>")


def same(expected, got):
    calls = [CALL.findall(text) for text in (expected, got)]
    if calls[0]:
        try:
            return [json.loads(c) for c in calls[0]] == [json.loads(c) for c in calls[1]]
        except ValueError:
            return False
    return expected.strip() == got.strip()


def by_torch(directory):
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    import train
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = train.Model(train.CONFIG)
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in load_file(directory / "model.safetensors").items()})
    stop = tokenizer.token_to_id("<|im_end|>")

    @torch.no_grad()
    def answer(prompt):
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        start = len(ids)
        while len(ids) - start < 120:
            hidden = model(torch.tensor([ids]))
            token = int((hidden[0, -1] @ model.embed_tokens.weight.T).argmax())
            if token == stop:
                break
            ids.append(token)
        return tokenizer.decode(ids[start:], skip_special_tokens=False)

    return answer


def by_kvasir(directory, binary):
    def answer(prompt):
        out = subprocess.run([binary, "generate", *([str(directory)] if directory else []), "--prompt", prompt, "--max-tokens", "120", "--json"],
                             capture_output=True, text=True, check=True)
        return json.loads(out.stdout)["text"]

    return answer


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model", type=pathlib.Path, nargs="?")
    args.add_argument("--kvasir")
    args.add_argument("--each", type=int, default=100)
    args.add_argument("--show", type=int, default=0, help="wrong answers to print per kind")
    args = args.parse_args()
    answer = by_kvasir(args.model, args.kvasir) if args.kvasir else by_torch(args.model)
    right, asked = collections.Counter(), collections.Counter()
    for kind, prompt, expected in questions(args.each):
        got = answer(prompt)
        asked[kind] += 1
        right[kind] += (ok := same(expected, got))
        if not ok and asked[kind] - right[kind] <= args.show:
            print(f"[{kind}] {prompt[-160:]!r}\n   expected {expected!r}\n   got      {got!r}")
    for kind in sorted(asked):
        print(f"{kind:12} {right[kind]:4} of {asked[kind]:4}  {100 * right[kind] / asked[kind]:5.1f} %")


if __name__ == "__main__":
    main()

"""Trains a multi-token-prediction (MTP) layer for the built-in model, or scores it.

`python mtp.py OUT`, `python mtp.py OUT --score`.

The layer has the layout of DeepSeek-V3's with the target's kind of decoder layer, and shares the target's embedding and
output head.
"""

import json

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import draft
import tokenizer as bpe
import train

LEVELS = 4
CONFIG = {**train.CONFIG, "num_nextn_predict_layers": 1}
PREFIX = f"model.layers.{train.CONFIG['num_hidden_layers']}."


class Layer(draft.Drafter):
    vocab = torch.arange(bpe.VOCAB)

    def __init__(self, c):
        super().__init__()
        width = c["hidden_size"]
        self.enorm, self.hnorm = train.RMSNorm(width), train.RMSNorm(width)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = train.RMSNorm(width), train.RMSNorm(width)
        self.self_attn, self.mlp = draft.Attention(c, width, normed=True), train.MLP(c)
        self.shared_head = nn.ModuleDict({"norm": train.RMSNorm(width)})
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02)

    def start_from(self, target, features):
        """Draft of the untrained layer: the target's output head on the state that it takes."""
        with torch.no_grad():
            width = self.eh_proj.out_features
            self.eh_proj.weight.zero_()[:, width:] = torch.eye(width)
            self.shared_head["norm"].weight.fill_(features.pow(2).mean().sqrt())

    @property
    def decoder(self):
        return self

    def features(self, streams, final):
        return final

    def first_state(self, features):
        return features

    def enter(self, embedding, state):
        x = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(state)], -1))
        return x, self.input_layernorm(x)

    def norm_and_state(self, residual):
        output = self.shared_head["norm"](residual)
        return output, output

    def logits(self, output, target):
        return output @ target.embed_tokens.weight.T


def export(layer, out):
    """Writes the layer as a checkpoint of the target that has no other tensors."""
    tensors = {PREFIX + name: p.detach().to(torch.bfloat16).contiguous() for name, p in layer.named_parameters()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def main():
    args = draft.arguments(steps=450, tokens=2048)
    target, tokenizer = draft.load_target(draft.GGUF)
    layer = Layer(CONFIG)
    if args.score:
        tensors = load_file(args.out / "model.safetensors")
        layer.load_state_dict({name.removeprefix(PREFIX): tensor.float() for name, tensor in tensors.items()})
        draft.show_score(args, target, tokenizer, layer, count=512)
        return
    sample = next(draft.pools(target, tokenizer, layer, args.tokens, seed=5, count=32))
    layer.start_from(target, torch.cat([batch[2][batch[1].bool()] for batch in sample]))
    draft.learn(args, target, tokenizer, layer, LEVELS, None, export)


if __name__ == "__main__":
    main()

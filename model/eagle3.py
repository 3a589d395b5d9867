"""Trains an EAGLE-3 draft head for the built-in model, or scores it.

`python eagle3.py OUT`, `python eagle3.py OUT --score`."""

import collections
import itertools
import json

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import corpus
import draft
import tokenizer as bpe
import train

# Residual streams that enter these layers of the target are the features.
TAPS = [1, 3, 5]
LEVELS = 4
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "hidden_act": "silu",
    "vocab_size": bpe.VOCAB, "draft_vocab_size": 1536, "max_position_embeddings": train.CONFIG["max_position_embeddings"],
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS},
}


class MidLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (train.RMSNorm(c["hidden_size"]) for _ in range(3))
        self.self_attn, self.mlp = draft.Attention(c, 2 * c["hidden_size"], normed=False), train.MLP(c)


class Head(draft.Drafter):
    def __init__(self, vocab):
        super().__init__()
        self.vocab, width = vocab, CONFIG["hidden_size"]
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer, self.norm = MidLayer(CONFIG), train.RMSNorm(width)
        self.lm_head = nn.Linear(width, CONFIG["draft_vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02)

    def start_from(self, target):
        """Draft of the untrained head: the target's output head on the input of the last tapped layer."""
        with torch.no_grad():
            width = self.fc.out_features
            self.fc.weight.zero_()[:, -width:] = torch.eye(width)
            self.norm.weight.copy_(target.norm.weight)
            self.lm_head.weight.copy_(target.embed_tokens.weight[self.vocab])

    @property
    def decoder(self):
        return self.midlayer

    def features(self, streams, final):
        return torch.cat([streams[i] for i in TAPS], -1)

    def first_state(self, features):
        return self.fc(features)

    def enter(self, embedding, state):
        return state, torch.cat([self.midlayer.input_layernorm(embedding), self.midlayer.hidden_norm(state)], -1)

    def norm_and_state(self, residual):
        return self.norm(residual), residual

    def logits(self, output, target):
        return self.lm_head(output)


def draft_vocabulary(tokenizer, size):
    """The most frequent tokens of answers, in ascending order, and their share."""
    counts = collections.Counter()
    for ids, learn in draft.encode(tokenizer, itertools.islice(corpus.stream(5), 5_000)):
        counts.update(itertools.compress(ids, learn))
    ids = [token for token, _ in counts.most_common(size)]
    ids += itertools.islice((token for token in range(bpe.VOCAB) if token not in counts), size - len(ids))
    return torch.tensor(sorted(ids)), sum(counts[token] for token in ids) / counts.total()


def export(head, out):
    """Writes the checkpoint in the EAGLE-3 layout."""
    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in head.named_parameters()}
    tensors["d2t"] = head.vocab - torch.arange(len(head.vocab))
    tensors["t2d"] = torch.zeros(bpe.VOCAB, dtype=torch.bool).index_fill(0, head.vocab, True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def load(path):
    tensors = load_file(path / "model.safetensors")
    d2t, _ = tensors.pop("d2t"), tensors.pop("t2d")
    head = Head(d2t + torch.arange(len(d2t)))
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head


def main():
    args = draft.arguments(steps=400, tokens=2048)
    target, tokenizer = draft.load_target(draft.GGUF)
    if args.score:
        draft.show_score(args, target, tokenizer, load(args.out), count=512)
        return
    vocab, share = draft_vocabulary(tokenizer, CONFIG["draft_vocab_size"])
    print(f"{len(vocab)} tokens for {100 * share:.2f} % of answers")
    head = Head(vocab)
    head.start_from(target)
    draft.learn(args, target, tokenizer, head, LEVELS, "lm_head.weight", export)


if __name__ == "__main__":
    main()

"""Trains an EAGLE-3 draft head for the built-in model: `python eagle3.py OUT`, or scores it: `python eagle3.py OUT --score`.

The target is frozen and comes from its GGUF file. The head learns its softmax by distillation, on the answers of corpus conversations.
Training-time test: from every answer token the head drafts `LEVELS` tokens and feeds back its own output, as it does while drafting.
"""

import argparse
import collections
import itertools
import json
import pathlib
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

import chatml
import corpus
import tokenizer as bpe
import train

GGUF = pathlib.Path(__file__).parent.parent / "crates/kvasir/kvasir-mini.gguf"
# Residual streams that enter these layers of the target are the features.
TAPS = [1, 3, 5]
LEVELS, DECAY = 4, 0.9
# Conversations are drawn `TALKS` at a time, truncated to `LENGTH` tokens, run by the target once and used `REUSE` times.
TALKS, TOKENS, LENGTH, REUSE = 256, 2048, 512, 4
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "hidden_act": "silu",
    "vocab_size": bpe.VOCAB, "draft_vocab_size": 1536, "max_position_embeddings": train.CONFIG["max_position_embeddings"],
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS},
}
# The target's tensors: GGUF name to name in `train.Model`.
NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def read_gguf(path):
    """Metadata and tensors of a GGUF file whose tensors are F32 or Q8_0."""
    data, at = path.read_bytes(), 8

    def take(code):
        nonlocal at
        at += struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, data, at - struct.calcsize("<" + code))[0]

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind, count = take("I"), take("Q")
            return [value(kind) for _ in range(count)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    count, keys = take("Q"), take("Q")
    meta = {text(): value(take("I")) for _ in range(keys)}
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(count)]
    base, tensors = -(-at // meta["general.alignment"]) * meta["general.alignment"], {}
    for name, shape, kind, offset in infos:
        size = int(np.prod(shape))
        if kind == 0:
            flat = np.frombuffer(data, "<f4", size, base + offset).copy()
        elif kind == 8:
            blocks = np.frombuffer(data, [("scale", "<f2"), ("codes", "i1", 32)], size // 32, base + offset)
            flat = blocks["codes"].astype("f4") * blocks["scale"].astype("f4")[:, None]
        else:
            raise ValueError(f"tensor `{name}` has type {kind}, not F32 or Q8_0")
        tensors[name] = torch.from_numpy(flat.reshape(shape[::-1]))
    return meta, tensors


def load_target(path):
    """The frozen target and its tokenizer."""
    meta, tensors = read_gguf(path)
    state = {}
    for name, tensor in tensors.items():
        *block, part, _ = name.split(".")
        state[(f"layers.{block[1]}." if block else "") + NAMES[part] + ".weight"] = tensor
    model = train.Model(train.CONFIG).requires_grad_(False)
    model.load_state_dict(state)
    tokens, plain = meta["tokenizer.ggml.tokens"], bpe.VOCAB - len(bpe.SPECIAL) - len(bpe.MARKS)
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens[:plain])}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(bpe.SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in bpe.SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in bpe.MARKS])
    return model, tokenizer


def angles(length, c):
    freq = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
    angle = torch.arange(length)[:, None] * torch.cat([freq, freq])
    return angle.cos(), angle.sin()


@torch.no_grad()
def run_target(model, ids):
    """Features and hidden states after the final norm, of every token."""
    x, features, (cos, sin) = model.embed_tokens(ids), [], angles(ids.shape[1], train.CONFIG)
    for i, layer in enumerate(model.layers):
        features += [x] * TAPS.count(i)
        x = layer(x, cos, sin)
    return torch.cat(features, -1), model.norm(x)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        for name, heads in [("q_proj", self.heads), ("k_proj", self.kv), ("v_proj", self.kv)]:
            setattr(self, name, nn.Linear(2 * c["hidden_size"], heads * self.dim, bias=False))
        self.o_proj = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)

    def keys_values(self, x, cos, sin):
        """`[..., tokens, 2 * hidden]` to two of `[..., heads, tokens, dim]`."""
        k, v = (p(x).unflatten(-1, (self.kv, self.dim)).transpose(-2, -3) for p in (self.k_proj, self.v_proj))
        return tuple(y.repeat_interleave(self.heads // self.kv, -3) for y in (train.rotate(k, cos, sin), v))


class MidLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (train.RMSNorm(c["hidden_size"]) for _ in range(3))
        self.self_attn, self.mlp = Attention(c), train.MLP(c)

    def joined(self, embedding, h):
        return torch.cat([self.input_layernorm(embedding), self.hidden_norm(h)], -1)


class Head(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = nn.Linear(3 * c["hidden_size"], c["hidden_size"], bias=False)
        self.midlayer, self.norm = MidLayer(c), train.RMSNorm(c["hidden_size"])
        self.lm_head = nn.Linear(c["hidden_size"], c["draft_vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02)

    def start_from(self, target, ids):
        """Draft of the untrained head: the target's output head on the residual stream that enters the last tapped layer."""
        with torch.no_grad():
            self.fc.weight.zero_()[:, -self.c["hidden_size"]:] = torch.eye(self.c["hidden_size"])
            self.norm.weight.copy_(target.norm.weight)
            self.lm_head.weight.copy_(target.embed_tokens.weight[ids])

    def forward(self, features, embeddings, at, levels):
        """Outputs of each level, from the roots `at` = (conversation, token i) that pair features i with embedding i + 1.

        Keys of a root at level k: those of level 0 up to the root, and its own of levels 1 to k.
        """
        layer, attn = self.midlayer, self.midlayer.self_attn
        talk, token = at
        counts = torch.bincount(talk, minlength=len(features))
        slot = torch.arange(len(talk)) - (counts.cumsum(0) - counts)[talk]
        cos, sin = angles(features.shape[1] + levels, self.c)

        def padded(x):
            return x.new_zeros(len(counts), int(counts.max()), *x.shape[1:]).index_put((talk, slot), x)

        h = self.fc(features[:, :-1])
        x = layer.joined(embeddings[:, 1:features.shape[1]], h)
        keys, values = attn.keys_values(x, cos[:x.shape[1]], sin[:x.shape[1]])
        hidden_from_root = torch.arange(x.shape[1]) > padded(token)[:, None, :, None]
        state, x, own, outputs = h[at], x[at], [], []
        for level in range(levels):
            place = token + level
            if level:
                x = layer.joined(embeddings[talk, place + 1], state)
                k, v = attn.keys_values(x[:, None], cos[place, None, None], sin[place, None, None])
                own.append([padded(y[:, :, 0]).transpose(1, 2) for y in (k, v)])
            q = train.rotate(attn.q_proj(x).unflatten(-1, (attn.heads, attn.dim)), cos[place, None], sin[place, None])
            q = padded(q).transpose(1, 2) * attn.dim ** -0.5
            scores = [(q @ keys.mT).masked_fill(hidden_from_root, -torch.inf)] + [(q * k).sum(-1, keepdim=True) for k, _ in own]
            weights = torch.cat(scores, -1).softmax(-1)
            y = weights[..., :keys.shape[2]] @ values
            for i, (_, v) in enumerate(own):
                y = y + weights[..., keys.shape[2] + i, None] * v
            state = state + attn.o_proj(y.transpose(1, 2)[talk, slot].flatten(1))
            state = state + layer.mlp(layer.post_attention_layernorm(state))
            outputs.append(self.norm(state))
        return outputs


def encode(tokenizer, talks):
    """Token ids of each conversation, and whether the assistant must produce them."""
    parts = [chatml.segments(talk.messages, talk.tools) for talk in talks]
    codes = iter(tokenizer.encode_batch([text for talk in parts for text, _ in talk], add_special_tokens=False))
    for talk in parts:
        ids, learn = [], []
        for _, said in talk:
            code = next(codes).ids
            ids, learn = ids + code, learn + [said] * len(code)
        yield ids[:LENGTH], learn[:LENGTH]


def pools(target, tokenizer, seed, count=TALKS, held_out=False):
    """Endless lists of batches of about `TOKENS` tokens, of conversations of similar length, padded: ids, learn, features, final states."""
    talks = corpus.stream(seed, held_out)
    while True:
        groups = [[]]
        for row in sorted(encode(tokenizer, itertools.islice(talks, count)), key=lambda row: len(row[0])):
            if (len(groups[-1]) + 1) * len(row[0]) > TOKENS:
                groups.append([])
            groups[-1].append(row)
        pool = []
        for group in groups:
            ids, learn = (nn.utils.rnn.pad_sequence([torch.tensor(row[part]) for row in group], batch_first=True) for part in (0, 1))
            pool.append((ids, learn, *run_target(target, ids)))
        yield pool


def draft(target, head, batch, levels):
    """Roots of a batch, and per level: logits of the head, which roots are still inside their answer, and of those the target's logits."""
    ids, learn, features, final = batch
    talk, token = at = (learn[:, 1:-1] & learn[:, 2:]).nonzero(as_tuple=True)
    ids, learn = F.pad(ids, (0, levels)), F.pad(learn, (0, levels))
    outputs = head(features, target.embed_tokens(ids), at, levels)
    predicts = learn[:, 1:].nonzero(as_tuple=True)
    row = torch.zeros_like(ids).index_put(predicts, torch.arange(len(predicts[0])))
    expected = final[predicts] @ target.embed_tokens.weight.T
    inside, found = torch.ones_like(token, dtype=torch.bool), []
    for level, out in enumerate(outputs):
        inside = inside & learn[talk, token + level + 2]
        found.append((head.lm_head(out[inside]), inside, expected[row[talk, token + level + 1][inside]]))
    return at, found


def loss_of(found, vocab):
    """Cross entropy against the target's softmax over the draft vocabulary, where that contains the target's argmax."""
    drafted = torch.zeros(bpe.VOCAB, dtype=torch.bool)
    drafted[vocab] = True
    total, weights = 0.0, 0.0
    for level, (logits, _, expected) in enumerate(found):
        kept = drafted[expected.argmax(-1)]
        losses = F.cross_entropy(logits[kept], expected[kept][:, vocab].softmax(-1))
        total, weights = total + DECAY ** level * losses, weights + DECAY ** level
    return total / weights


@torch.no_grad()
def score(target, head, pool, vocab, depth):
    """Drafts greedy chains over the answers of a pool, as an engine does: rounds by accepted tokens, and by depth the shares of
    drafts that equal the target's argmax at any root."""
    rounds, right, asked = collections.Counter(), np.zeros(depth), np.zeros(depth)
    for batch in pool:
        (talk, token), found = draft(target, head, batch, depth)
        accepted, going = torch.zeros_like(token), torch.ones_like(token, dtype=torch.bool)
        for level, (logits, inside, expected) in enumerate(found):
            same = torch.zeros_like(going)
            same[inside] = vocab[logits.argmax(-1)] == expected.argmax(-1)
            going &= same
            accepted += going
            right[level], asked[level] = right[level] + same.sum().item(), asked[level] + inside.sum().item()
        left, last = 0, None
        for place, length in zip(zip(talk.tolist(), token.tolist()), accepted.tolist()):
            left = left if last == (place[0], place[1] - 1) else 0
            if left == 0:
                rounds[length] += 1
                left = length + 1
            left, last = left - 1, place
    return rounds, right / asked


def show(rounds, right):
    count = sum(rounds.values())
    reached = [sum(n for length, n in rounds.items() if length > level) / count for level in range(len(right))]
    mean = sum(reached)
    return f"accepted per round {mean:.3f}, by depth " + " ".join(f"{x:.3f}" for x in reached) + ", of all " + " ".join(f"{x:.3f}" for x in right)


def draft_vocabulary(tokenizer, size):
    """The most frequent tokens of answers, in ascending order, and their share."""
    counts = collections.Counter()
    for ids, learn in encode(tokenizer, itertools.islice(corpus.stream(5), 5_000)):
        counts.update(itertools.compress(ids, learn))
    ids = [token for token, _ in counts.most_common(size)]
    ids += itertools.islice((token for token in range(bpe.VOCAB) if token not in counts), size - len(ids))
    return torch.tensor(sorted(ids)), sum(counts[token] for token in ids) / counts.total()


def export(head, vocab, out):
    """Writes the checkpoint in the EAGLE-3 layout."""
    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in head.named_parameters()}
    tensors["d2t"] = vocab - torch.arange(len(vocab))
    tensors["t2d"] = torch.zeros(bpe.VOCAB, dtype=torch.bool).index_fill(0, vocab, True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(head.c, indent=1) + "\n")


def load(path):
    tensors = load_file(path / "model.safetensors")
    d2t, _ = tensors.pop("d2t"), tensors.pop("t2d")
    head = Head(json.loads((path / "config.json").read_text()))
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head, d2t + torch.arange(len(d2t))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--steps", type=int, default=400)
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--lr", type=float, default=0.02)
    args.add_argument("--adam", type=float, default=2e-3)
    args.add_argument("--score", action="store_true", help="score the head in OUT instead of training it")
    args.add_argument("--depth", type=int, default=5, help="tokens per draft when scoring")
    args = args.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    target, tokenizer = load_target(GGUF)
    test = next(pools(target, tokenizer, seed=99, count=512 if args.score else 96, held_out=True))
    if args.score:
        head, vocab = load(args.out)
        print(show(*score(target, head, test, vocab, args.depth)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    clock = time.time()
    vocab, share = draft_vocabulary(tokenizer, CONFIG["draft_vocab_size"])
    head = Head(CONFIG)
    head.start_from(target, vocab)
    print(f"{sum(p.numel() for p in head.parameters()) / 1e6:.2f} M parameters, {len(vocab)} tokens for {100 * share:.2f} % of answers, "
          f"{args.steps} steps of {TOKENS} tokens", flush=True)
    matrices = [p for n, p in head.named_parameters() if p.ndim == 2 and n != "lm_head.weight"]
    others = [p for n, p in head.named_parameters() if p.ndim != 2 or n == "lm_head.weight"]
    muon, adam = train.Muon(matrices, lr=args.lr), torch.optim.AdamW(others, lr=args.adam, betas=(0.9, 0.95), weight_decay=0.0)
    recent = []
    data = (pool[i] for pool in pools(target, tokenizer, seed=21) for _ in range(REUSE) for i in torch.randperm(len(pool)))
    for step, batch in enumerate(itertools.islice(data, args.steps)):
        scale = min(1, (step + 1) / 20) * min(1, (args.steps - step) / (0.5 * args.steps))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = args.lr * scale, args.adam * scale
        loss = loss_of(draft(target, head, batch, LEVELS)[1], vocab)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(), adam.step()
        muon.zero_grad(), adam.zero_grad()
        recent.append(loss.item())
        if (step + 1) % 25 == 0:
            print(f"step {step + 1} loss {np.mean(recent[-25:]):.4f} {time.time() - clock:.0f} s", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            export(head, vocab, args.out)
        if step + 1 == args.steps:
            print(show(*score(target, head, test, vocab, args.depth)), flush=True)


if __name__ == "__main__":
    main()

"""Training and scoring of draft layers for the built-in model, shared by `eagle3.py` and `mtp.py`.

The target is frozen and comes from its GGUF file. A draft layer learns its softmax by distillation, on the answers of
corpus conversations. Training-time test: from every answer token the layer drafts several tokens and feeds back its own
states, as it does while drafting.
"""

import argparse
import collections
import itertools
import pathlib
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

import chatml
import corpus
import tokenizer as bpe
import train

GGUF = pathlib.Path(__file__).parent.parent / "crates/kvasir/kvasir-mini.gguf"
# Weight of a level's loss, relative to that of the level before.
DECAY = 0.9
# Conversations are drawn `TALKS` at a time and truncated to `LENGTH` tokens. The target runs them once; training uses
# its outputs `REUSE` times.
TALKS, LENGTH, REUSE = 256, 512, 4
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
    """Residual streams that enter each layer, and hidden states after the final norm, of every token."""
    x, streams, (cos, sin) = model.embed_tokens(ids), [], angles(ids.shape[1], train.CONFIG)
    for layer in model.layers:
        streams.append(x)
        x = layer(x, cos, sin)
    return streams, model.norm(x)


class Attention(nn.Module):
    """Over inputs of this width; with `normed`, queries and keys pass an RMSNorm per head."""

    def __init__(self, c, width, normed):
        super().__init__()
        self.heads, self.kv, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        for name, heads in [("q_proj", self.heads), ("k_proj", self.kv), ("v_proj", self.kv)]:
            setattr(self, name, nn.Linear(width, heads * self.dim, bias=False))
        self.o_proj = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)
        self.q_norm, self.k_norm = (train.RMSNorm(self.dim) if normed else nn.Identity() for _ in range(2))

    def queries(self, x, cos, sin):
        """`[roots, width]` to `[roots, heads, dim]`."""
        return train.rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim))), cos, sin) * self.dim ** -0.5

    def keys_values(self, x, cos, sin):
        """`[..., tokens, width]` to two of `[..., heads, tokens, dim]`."""
        k, v = (p(x).unflatten(-1, (self.kv, self.dim)).transpose(-2, -3) for p in (self.k_proj, self.v_proj))
        return tuple(y.repeat_interleave(self.heads // self.kv, -3) for y in (train.rotate(self.k_norm(k), cos, sin), v))


class Drafter(nn.Module):
    """A decoder layer over the target's states and the embeddings of the tokens after them.

    `decoder` has the attention, norm and MLP. Subclasses define these methods:

    - `features(streams, final)`: the part of `run_target`'s outputs that the layer reads;
    - `first_state(features)`: the states of the roots;
    - `enter(embedding, state)`: residual stream and attention input;
    - `norm_and_state(residual)`: the output, and the state of the next level;
    - `logits(output, target)`: logits over the ids `vocab` of the target.
    """

    def forward(self, features, embeddings, at, levels):
        """Outputs of each level, from the roots `at` = (conversation, token i).

        A root pairs features i with embedding i + 1. Its keys at level k are those of level 0 up to the root, and its
        own of levels 1 to k.
        """
        layer, attn = self.decoder, self.decoder.self_attn
        talk, token = at
        counts = torch.bincount(talk, minlength=len(features))
        slot = torch.arange(len(talk)) - (counts.cumsum(0) - counts)[talk]
        cos, sin = angles(features.shape[1] + levels, train.CONFIG)

        def padded(x):
            return x.new_zeros(len(counts), int(counts.max()), *x.shape[1:]).index_put((talk, slot), x)

        residual, x = self.enter(embeddings[:, 1:features.shape[1]], self.first_state(features[:, :-1]))
        keys, values = attn.keys_values(x, cos[:x.shape[1]], sin[:x.shape[1]])
        hidden_from_root = torch.arange(x.shape[1]) > padded(token)[:, None, :, None]
        residual, x, own, outputs = residual[at], x[at], [], []
        for level in range(levels):
            place = token + level
            if level:
                residual, x = self.enter(embeddings[talk, place + 1], state)
                k, v = attn.keys_values(x[:, None], cos[place, None, None], sin[place, None, None])
                own.append([padded(y[:, :, 0]).transpose(1, 2) for y in (k, v)])
            q = padded(attn.queries(x, cos[place, None], sin[place, None])).transpose(1, 2)
            scores = [(q @ keys.mT).masked_fill(hidden_from_root, -torch.inf)] + [(q * k).sum(-1, keepdim=True) for k, _ in own]
            weights = torch.cat(scores, -1).softmax(-1)
            y = weights[..., :keys.shape[2]] @ values
            for i, (_, v) in enumerate(own):
                y = y + weights[..., keys.shape[2] + i, None] * v
            residual = residual + attn.o_proj(y.transpose(1, 2)[talk, slot].flatten(1))
            residual = residual + layer.mlp(layer.post_attention_layernorm(residual))
            output, state = self.norm_and_state(residual)
            outputs.append(output)
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


def pools(target, tokenizer, drafter, tokens, seed, count=TALKS, held_out=False):
    """Endless lists of padded batches (ids, learn, features, final states) of about `tokens` tokens each.

    The conversations of a batch have similar lengths."""
    talks = corpus.stream(seed, held_out)
    while True:
        groups = [[]]
        for row in sorted(encode(tokenizer, itertools.islice(talks, count)), key=lambda row: len(row[0])):
            if (len(groups[-1]) + 1) * len(row[0]) > tokens:
                groups.append([])
            groups[-1].append(row)
        pool = []
        for group in groups:
            ids, learn = (nn.utils.rnn.pad_sequence([torch.tensor(row[part]) for row in group], batch_first=True) for part in (0, 1))
            streams, final = run_target(target, ids)
            pool.append((ids, learn, drafter.features(streams, final), final))
        yield pool


def draft(target, drafter, batch, levels):
    """Roots of a batch; per level: draft logits, a mask of roots still inside their answer, target logits of those."""
    ids, learn, features, final = batch
    talk, token = at = (learn[:, 1:-1] & learn[:, 2:]).nonzero(as_tuple=True)
    ids, learn = F.pad(ids, (0, levels)), F.pad(learn, (0, levels))
    outputs = drafter(features, target.embed_tokens(ids), at, levels)
    predicts = learn[:, 1:].nonzero(as_tuple=True)
    row = torch.zeros_like(ids).index_put(predicts, torch.arange(len(predicts[0])))
    expected = final[predicts] @ target.embed_tokens.weight.T
    inside, found = torch.ones_like(token, dtype=torch.bool), []
    for level, out in enumerate(outputs):
        inside = inside & learn[talk, token + level + 2]
        found.append((drafter.logits(out[inside], target), inside, expected[row[talk, token + level + 1][inside]]))
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
def score(target, drafter, pool, depth):
    """Drafts greedy chains over the answers of a pool, as an engine does.

    Returns rounds by accepted tokens, and by depth the fraction of drafts of all roots that equal the target's
    argmax."""
    rounds, right, asked = collections.Counter(), np.zeros(depth), np.zeros(depth)
    for batch in pool:
        (talk, token), found = draft(target, drafter, batch, depth)
        accepted, going = torch.zeros_like(token), torch.ones_like(token, dtype=torch.bool)
        for level, (logits, inside, expected) in enumerate(found):
            same = torch.zeros_like(going)
            same[inside] = drafter.vocab[logits.argmax(-1)] == expected.argmax(-1)
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


def arguments(steps, tokens):
    args = argparse.ArgumentParser()
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--steps", type=int, default=steps)
    args.add_argument("--tokens", type=int, default=tokens, help="tokens of a step")
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--lr", type=float, default=0.02)
    args.add_argument("--adam", type=float, default=2e-3)
    args.add_argument("--score", action="store_true", help="score what is in OUT instead of training it")
    args.add_argument("--depth", type=int, default=5, help="tokens per draft when scoring")
    args = args.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    return args


def show_score(args, target, tokenizer, drafter, count):
    test = next(pools(target, tokenizer, drafter, args.tokens, seed=99, count=count, held_out=True))
    print(show(*score(target, drafter, test, args.depth)), flush=True)


def learn(args, target, tokenizer, drafter, levels, head, export):
    """Trains on drafts of `levels` tokens: matrices by Muon, the rest and the matrix named `head` by AdamW."""
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"{sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters, {args.steps} steps of {args.tokens} tokens", flush=True)
    matrices = [p for n, p in drafter.named_parameters() if p.ndim == 2 and n != head]
    others = [p for n, p in drafter.named_parameters() if p.ndim != 2 or n == head]
    muon, adam = train.Muon(matrices, lr=args.lr), torch.optim.AdamW(others, lr=args.adam, betas=(0.9, 0.95), weight_decay=0.0)
    recent, clock = [], time.time()
    data = (pool[i] for pool in pools(target, tokenizer, drafter, args.tokens, seed=21) for _ in range(REUSE) for i in torch.randperm(len(pool)))
    for step, batch in enumerate(itertools.islice(data, args.steps)):
        scale = min(1, (step + 1) / 20) * min(1, (args.steps - step) / (0.5 * args.steps))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = args.lr * scale, args.adam * scale
        loss = loss_of(draft(target, drafter, batch, levels)[1], drafter.vocab)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(), adam.step()
        muon.zero_grad(), adam.zero_grad()
        recent.append(loss.item())
        if (step + 1) % 25 == 0:
            seconds = f"{time.time() - clock:.0f} s, {time.process_time():.0f} s of processor"
            print(f"step {step + 1} loss {np.mean(recent[-25:]):.4f} {seconds}", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            export(drafter, args.out)
    show_score(args, target, tokenizer, drafter, count=96)

"""Trains the built-in model: `python train.py OUT [--steps N]`. Fixed seeds; resumes from OUT/state.pt.

A Qwen3 of a few million parameters on packed conversations. Matrices learn by Muon, the rest by AdamW.
"""

import argparse
import json
import math
import os
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

import chatml
import corpus
import tokenizer as bpe

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "vocab_size": bpe.VOCAB,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "attention_bias": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "use_sliding_window": False,
}
LENGTH, ROWS = 512, 16
PROMPT_WEIGHT = 0.1


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv * self.dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, self.heads, self.dim)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, self.kv, self.dim)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv, self.dim).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c["hidden_size"]), RMSNorm(c["hidden_size"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])
        self.dim, self.theta = c["head_dim"], c["rope_theta"]
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["num_hidden_layers"]))
            elif name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        freq = self.theta ** (-torch.arange(0, self.dim, 2) / self.dim)
        angle = torch.arange(ids.shape[1])[:, None] * torch.cat([freq, freq])
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix (five Newton-Schulz steps)."""

    def __init__(self, params, lr, momentum=0.95, decay=0.05):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                u = p.grad.lerp(state["m"], group["momentum"])
                wide = u.shape[0] > u.shape[1]
                u = u.T if wide else u
                u = u / (u.norm() + 1e-7)
                for _ in range(5):
                    a = u @ u.T
                    u = 3.4445 * u + (-4.7750 * a + 2.0315 * a @ a) @ u
                u = u.T if wide else u
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(u, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def rows(tokenizer, seed):
    """Endless rows of `LENGTH` tokens, conversation after conversation: ids and the weights of each as a target."""
    talks, end = corpus.stream(seed), tokenizer.token_to_id("<|endoftext|>")
    ids, weights = [end], [0.0]
    while True:
        parts = [part for _ in range(256) for part in chatml.segments(*turns(next(talks))) + [("", False)]]
        codes = tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
        for (text, learn), code in zip(parts, codes):
            ids += code.ids if text else [end]
            weights += [1.0 if learn else PROMPT_WEIGHT] * (len(ids) - len(weights))
        while len(ids) > LENGTH:
            yield ids[:LENGTH + 1], weights[1:LENGTH + 1]
            ids, weights = ids[LENGTH:], weights[LENGTH:]


def turns(talk):
    return talk.messages, talk.tools


def batches(tokenizer, seed):
    source = rows(tokenizer, seed)
    while True:
        ids, weights = (torch.tensor(t) for t in zip(*(next(source) for _ in range(ROWS))))
        yield ids[:, :-1], ids[:, 1:], weights


def export(model, out, tokenizer):
    """Writes the checkpoint in the Hugging Face layout."""
    tensors = {f"model.{name}": p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    ids = {text: tokenizer.token_to_id(text) for text in bpe.SPECIAL}
    (out / "config.json").write_text(json.dumps({**CONFIG, "bos_token_id": None, "eos_token_id": ids["<|im_end|>"]}, indent=1) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "temperature": 0.0}, indent=1) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False,
        "model_max_length": CONFIG["max_position_embeddings"], "chat_template": chatml.TEMPLATE}, indent=1) + "\n")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--steps", type=int, default=5000)
    args.add_argument("--threads", type=int, default=2)
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    path = str(args.out / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path) if os.path.exists(path) else bpe.train(path)
    model = Model(CONFIG)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon, adam = Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    start, state = 0, args.out / "state.pt"
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"]), muon.load_state_dict(saved["muon"]), adam.load_state_dict(saved["adam"])
        start = saved["step"]
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {args.steps} steps of {ROWS * LENGTH} tokens, from step {start}")
    run = torch.compile(model)
    data, clock, shown = batches(tokenizer, seed=11 + start), time.time(), start
    for step in range(start, args.steps):
        scale = min(1, (step + 1) / 100) * min(1, (args.steps - step) / (0.4 * args.steps))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = 0.02 * scale, 3e-3 * scale
        x, y, w = next(data)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = run(x)
            logits = hidden.flatten(0, 1) @ model.embed_tokens.weight.T
        loss, weight = F.cross_entropy(logits.float(), y.flatten(), reduction="none"), w.flatten()
        total = (loss * weight).sum() / weight.sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(), adam.step()
        muon.zero_grad(), adam.zero_grad()
        if (step + 1) % 50 == 0:
            answers = loss[weight == 1].mean().item()
            speed = (step + 1 - shown) * ROWS * LENGTH / (time.time() - clock)
            clock, shown = time.time(), step + 1
            print(f"step {step + 1} loss {total.item():.4f} answers {answers:.4f} {speed:.0f} tok/s", flush=True)
        if (step + 1) % 250 == 0 or step + 1 == args.steps:
            saved = {"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "step": step + 1}
            torch.save(saved, state.with_suffix(".new"))
            os.replace(state.with_suffix(".new"), state)
            export(model, args.out, tokenizer)


if __name__ == "__main__":
    main()

"""Writes a model whose n-th answer of a conversation is the n-th of a script.

The model makes agents call tools: they never force a call, and their prompts do not fit the built-in
model. The file is a GGUF of one Llama layer with the built-in model's tokenizer and chat format.

1. Each answer of the script is cut into pieces, unless it is a tuple of them; each piece is a token of its own.
2. The template ends a prompt with the token `<|reply_N|>`, where N answers came before.
3. Attention and the feed-forward network add zero, so the hidden state is the last token's embedding,
   a unit vector. The output matrix maps it to the token that follows in the script.

The server tokenizes, prefills, samples and parses as with any other model. Without a script, the model
babbles: embeddings and output matrix are random, so nearly every token may follow, except the end-of-sequence token:
all embeddings share a direction, in which its row is negative. This model has fill-in-the-middle tokens."""

import json
import random
import struct

UNSIGNED, FLOAT, BOOLEAN, STRING, ARRAY = 4, 6, 7, 8, 9
FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", UNSIGNED: "I", 5: "i", FLOAT: "f", BOOLEAN: "?", 10: "Q", 11: "q", 12: "d"}
CONTROL, USER_DEFINED = 3, 4
WIDTH = 64
HEAD = 32  # small: prompts have more than 10,000 tokens
PIECE = 16  # characters of an answer's token
FILL_IN_THE_MIDDLE = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
CALL, ARGUMENTS = "<tool_call>", '", "arguments"'
PROMPT_END = "<|im_start|>assistant\\n"
# Counts runs of messages of the assistant: a text and its calls may be sent as two.
NEXT_REPLY = """
{%- set replies = namespace(n=0, last='') -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' and replies.last != 'assistant' -%}
    {%- set replies.n = replies.n + 1 -%}
  {%- endif -%}
  {%- set replies.last = message.role -%}
{%- endfor -%}
"""


def call(name, **arguments):
    """A call of a tool as the chat format writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def forced_call(name, **arguments):
    """A call as tokens, for requests with one tool: where a grammar leaves no choice, its mask has only the
    token with which the tokenizer spells the forced text."""
    head = f'<tool_call>\n{{"name": "{name}", "arguments": {{'
    return head, call(name, **arguments).removeprefix(head)


def pieces(reply, tokens):
    """Cuts a reply into texts that are not among `tokens`, which the caller extends by each of them."""
    while reply:
        # A token stands for one place in the script, so a piece that came before is made longer.
        # The last piece is long because the ends of calls are alike. The first piece of a call
        # holds the tool's name: where the names of several tools begin alike, a grammar's mask
        # has only tokens that end with the common bytes.
        left = len(reply)
        least = max(PIECE, reply.find(ARGUMENTS)) if reply.startswith(CALL) else PIECE
        size = next(size for size in (*range(least, left - 2 * PIECE), left) if reply[:size] not in tokens)
        yield reply[:size]
        reply = reply[size:]


class Metadata:
    """Reads the key-value section of a GGUF file."""

    def __init__(self, data):
        self.data, self.at = data, 16
        (count,) = self.take("Q")
        self.values = {}
        for _ in range(count):
            name = self.value(STRING)
            (kind,) = self.take("I")
            self.values[name] = self.value(kind)

    def take(self, form):
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def value(self, kind):
        if kind == STRING:
            (size,) = self.take("Q")
            self.at += size
            return self.data[self.at - size : self.at].decode()
        if kind == ARRAY:
            item, count = self.take("IQ")
            return [self.value(item) for _ in range(count)]
        return self.take(FORMATS[kind])[0]


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def pair(name, kind, value):
    head = text(name) + struct.pack("<I", kind)
    if kind == STRING:
        return head + text(value)
    if kind != ARRAY:
        return head + struct.pack(f"<{FORMATS[kind]}", value)
    if isinstance(value[0], str):
        return head + struct.pack("<IQ", STRING, len(value)) + b"".join(map(text, value))
    return head + struct.pack(f"<IQ{len(value)}I", UNSIGNED, len(value), *value)


def write(source, path, replies, context=131072):
    """Writes to `path` the model that says `replies`, or babbles; `source` is the built-in model's file."""
    with open(source, "rb") as file:
        known = Metadata(file.read()).values
    tokens, types = known["tokenizer.ggml.tokens"], known["tokenizer.ggml.token_type"]
    end = known["tokenizer.ggml.eos_token_id"]

    follows = {}
    for number, reply in enumerate(replies):
        last = len(tokens)
        tokens.append(f"<|reply_{number}|>")
        types.append(CONTROL)
        for piece in reply if isinstance(reply, tuple) else pieces(reply, tokens):
            follows[last] = len(tokens)
            last = len(tokens)
            tokens.append(piece)
            types.append(USER_DEFINED)
        follows[last] = end
    if not replies:
        tokens += FILL_IN_THE_MIDDLE
        types += [CONTROL] * len(FILL_IN_THE_MIDDLE)
    assert len(follows) <= WIDTH, f"the script has {len(follows)} tokens, more than {WIDTH}"

    template = known["tokenizer.chat_template"]
    assert template.count(PROMPT_END) == 1, "the built-in model's chat format has changed"
    if replies:
        template = NEXT_REPLY + template.replace(PROMPT_END, f"{PROMPT_END}<|reply_' ~ replies.n ~ '|>")

    numbers = {
        "block_count": 1, "context_length": context, "vocab_size": len(tokens),
        "embedding_length": WIDTH, "feed_forward_length": WIDTH,
        "attention.head_count": 1, "attention.head_count_kv": 1,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD}
    pairs = [
        pair("general.architecture", STRING, "llama"),
        pair("general.alignment", UNSIGNED, 32),
        *(pair(f"llama.{name}", UNSIGNED, value) for name, value in numbers.items()),
        pair("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-6),
        pair("llama.rope.freq_base", FLOAT, 10000.0),
        pair("tokenizer.chat_template", STRING, template),
        pair("tokenizer.ggml.model", STRING, known["tokenizer.ggml.model"]),
        pair("tokenizer.ggml.pre", STRING, known["tokenizer.ggml.pre"]),
        pair("tokenizer.ggml.add_bos_token", BOOLEAN, False),
        pair("tokenizer.ggml.eos_token_id", UNSIGNED, end),
        pair("tokenizer.ggml.padding_token_id", UNSIGNED, known["tokenizer.ggml.padding_token_id"]),
        pair("tokenizer.ggml.tokens", ARRAY, tokens),
        pair("tokenizer.ggml.token_type", ARRAY, types),
        pair("tokenizer.ggml.merges", ARRAY, known["tokenizer.ggml.merges"]),
    ]

    ones = struct.pack(f"<{WIDTH}f", *[1.0] * WIDTH)
    embedding, output = bytearray(4 * WIDTH * len(tokens)), bytearray(4 * WIDTH * len(tokens))
    for direction, (token, following) in enumerate(follows.items()):
        struct.pack_into("<f", embedding, 4 * (WIDTH * token + direction), 1.0)
        struct.pack_into("<f", output, 4 * (WIDTH * following + direction), 10.0)
    if not replies:
        draw = random.Random(1)
        for token in range(len(tokens)):
            at, row = 4 * WIDTH * token, range(WIDTH - 1)
            struct.pack_into(f"<{WIDTH}f", embedding, at, 1.0, *(draw.gauss(0, 1) for _ in row))
            ends = -50.0 if token == end else 0.0
            struct.pack_into(f"<{WIDTH}f", output, at, ends, *(draw.gauss(0, 0.35) for _ in row))
    into_head, out_of_head, square = [WIDTH, HEAD], [HEAD, WIDTH], [WIDTH, WIDTH]
    layer = {
        "attn_q": into_head, "attn_k": into_head, "attn_v": into_head, "attn_output": out_of_head,
        "ffn_gate": square, "ffn_up": square, "ffn_down": square}
    tensors = [
        ("token_embd.weight", [WIDTH, len(tokens)], embedding),
        ("output.weight", [WIDTH, len(tokens)], output),
        ("output_norm.weight", [WIDTH], ones),
        ("blk.0.attn_norm.weight", [WIDTH], ones),
        ("blk.0.ffn_norm.weight", [WIDTH], ones),
        *((f"blk.0.{name}.weight", shape, bytes(4 * shape[0] * shape[1])) for name, shape in layer.items()),
    ]
    infos, offset = [], 0
    for name, shape, data in tensors:
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        offset += len(data)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs + infos)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, _, data in tensors:
            file.write(data)

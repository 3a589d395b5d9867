"""Trains the byte-level BPE of the built-in model: `python tokenizer.py OUT/tokenizer.json`."""

import itertools
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import chatml
import corpus

VOCAB = 3072
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# Qwen2's splits: words with their leading space, single digits, punctuation, line ends.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def texts(n, seed):
    for talk in itertools.islice(corpus.stream(seed), n):
        for text, _ in chatml.segments(talk.messages, talk.tools):
            for mark in SPECIAL + MARKS:
                text = text.replace(mark, "")
            yield text


def train(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL) - len(MARKS), min_frequency=3,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts(60_000, seed=7), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    tokenizer.save(path)
    return tokenizer


if __name__ == "__main__":
    print(train(sys.argv[1]).get_vocab_size(), "tokens")

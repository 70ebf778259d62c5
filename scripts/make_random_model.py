#!/usr/bin/env python3
# Writes a GGUF file of a known model shape with random bf16 weights, for speed and agreement tests where no real weights are at
# hand. Weights are normal with the width that keeps the residual stream and the logits in a real model's range; the vocabulary is
# bytes and made-up names, so prompts are given as token ids. Uses torch where it is there (a GPU makes 15 GB in seconds), else numpy.
import argparse
import struct
import sys

from make_random_folder import SHAPES as FOLDER_SHAPES

# hidden, layers, heads, kv heads, head dim, ffn, vocab, tied
SHAPES = {"tiny": (256, 2, 4, 2, 64, 512, 1024, True),
          "wide": (2048, 8, 32, 8, 64, 5632, 32768, False)}   # for K types, whose blocks take 256 columns
for shape_name, shape_of in FOLDER_SHAPES.items():
    if shape_name.startswith("qwen2.5-"):
        SHAPES[shape_name] = tuple(shape_of[key] for key in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")) + (
            shape_of["hidden_size"] // shape_of["num_attention_heads"], shape_of["intermediate_size"], shape_of["vocab_size"],
            shape_of["tie_word_embeddings"])
F32, BF16 = 0, 30
U32, FLOAT32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
ALIGNMENT = 32


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, value):
    body = {U32: lambda: struct.pack("<I", value), FLOAT32: lambda: struct.pack("<f", value), STRING: lambda: text(value)}[kind]()
    return text(name) + struct.pack("<I", kind) + body


def array(name, kind, values):
    body = b"".join(text(v) for v in values) if kind == STRING else struct.pack(f"<{len(values)}i", *values)
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body


def byte_names():
    names, extra = [], 256
    for b in range(256):
        printable = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        names.append(chr(b if printable else extra))
        extra += 0 if printable else 1
    return names


def metadata(name, shape, context):
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab, _ = shape
    tokens = byte_names() + [f"<t{i}>" for i in range(256, vocab - 1)] + ["<|endoftext|>"]
    types = [1] * (vocab - 1) + [3]
    p = "qwen2."
    return [
        key("general.architecture", STRING, "qwen2"),
        key("general.name", STRING, name + " shape, random weights"),
        key(p + "block_count", U32, layers),
        key(p + "context_length", U32, context),
        key(p + "embedding_length", U32, hidden),
        key(p + "feed_forward_length", U32, ffn),
        key(p + "attention.head_count", U32, heads),
        key(p + "attention.head_count_kv", U32, kv_heads),
        key(p + "attention.key_length", U32, head_dim),
        key(p + "attention.value_length", U32, head_dim),
        key(p + "attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
        key(p + "rope.freq_base", FLOAT32, 1e6),
        key("tokenizer.ggml.model", STRING, "gpt2"),
        key("tokenizer.ggml.pre", STRING, "qwen2"),
        array("tokenizer.ggml.tokens", STRING, tokens),
        array("tokenizer.ggml.token_type", I32, types),
        array("tokenizer.ggml.merges", STRING, []),
        key("tokenizer.ggml.eos_token_id", U32, vocab - 1),
    ]


def tensors(shape):
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied = shape
    q, kv = heads * head_dim, kv_heads * head_dim
    yield "token_embd.weight", (vocab, hidden), BF16, 0.02
    for i in range(layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (hidden,), F32, None
        yield p + "attn_q.weight", (q, hidden), BF16, hidden ** -0.5
        yield p + "attn_q.bias", (q,), F32, 0.1
        yield p + "attn_k.weight", (kv, hidden), BF16, hidden ** -0.5
        yield p + "attn_k.bias", (kv,), F32, 0.1
        yield p + "attn_v.weight", (kv, hidden), BF16, hidden ** -0.5
        yield p + "attn_v.bias", (kv,), F32, 0.1
        yield p + "attn_output.weight", (hidden, q), BF16, 0.5 * q ** -0.5
        yield p + "ffn_norm.weight", (hidden,), F32, None
        yield p + "ffn_gate.weight", (ffn, hidden), BF16, hidden ** -0.5
        yield p + "ffn_up.weight", (ffn, hidden), BF16, hidden ** -0.5
        yield p + "ffn_down.weight", (hidden, ffn), BF16, 0.5 * ffn ** -0.5
    yield "output_norm.weight", (hidden,), F32, None
    if not tied:
        yield "output.weight", (vocab, hidden), BF16, 2 * hidden ** -0.5


class Randoms:
    """Bytes of normal numbers, from torch on its fastest device or from numpy."""

    def __init__(self, seed):
        try:
            import torch
            self.torch = torch
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
            self.generator = torch.Generator(self.device).manual_seed(seed)
        except ImportError:
            import numpy
            self.torch, self.numpy = None, numpy
            self.generator = numpy.random.default_rng(seed)

    def raw(self, dims, kind, width):
        count = 1
        for d in dims:
            count *= d
        if self.torch is not None:
            t = self.torch
            if width is None:
                values = t.ones(count, dtype=t.float32, device=self.device)
            else:
                values = t.randn(count, dtype=t.float32, device=self.device, generator=self.generator) * width
            if kind == BF16:
                values = values.to(t.bfloat16).view(t.int16)
            return values.cpu().numpy().data
        n = self.numpy
        values = n.ones(count, n.float32) if width is None else self.generator.standard_normal(count, n.float32) * n.float32(width)
        return (values.view(n.uint32) >> 16).astype(n.uint16).data if kind == BF16 else values.data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path")
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    keys = metadata(options.shape, shape, options.context)
    items = list(tensors(shape))
    index, offset = [], 0
    for name, dims, kind, _ in items:
        size = (4 if kind == F32 else 2)
        for d in dims:
            size *= d
        index.append(text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in reversed(dims)) +
                     struct.pack("<IQ", kind, offset))
        offset += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(items), len(keys)) + b"".join(keys) + b"".join(index)
    randoms = Randoms(options.seed)
    with open(options.path, "wb", buffering=1 << 24) as out:
        out.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for _, dims, kind, width in items:
            data = randoms.raw(dims, kind, width)
            out.write(data)
            out.write(b"\0" * (-data.nbytes % ALIGNMENT))
    print(f"{options.path}: {options.shape}, {offset / 1e9:.2f} GB of random weights", file=sys.stderr)


if __name__ == "__main__":
    main()

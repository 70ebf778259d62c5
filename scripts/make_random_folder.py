#!/usr/bin/env python3
"""Writes a Hugging Face model folder of a true shape with random weights: config.json, safetensors, tokenizer and chat template.

For load, speed and parity tests where no real weights are at hand. Needs nothing but Python. Weights are normal numbers scaled so
that activations keep their size from layer to layer and logits are spread (standard deviation about 3); the same arguments give
the same bytes. The numbers come from one pool of a prime length, read round and round from another place for each tensor: no two
rows of a tensor are equal, and 15 GB are written at the speed of the disk.

  scripts/make_random_folder.py OUT --shape qwen2.5-7b
  scripts/make_random_folder.py OUT --shape qwen2.5-0.5b --set num_hidden_layers=2 --dtype f16 --shard-mib 100
"""

import argparse
import array
import json
import os
import random
import struct
import sys

POOL = 1048573  # prime: a tensor's rows all begin at different places of it
LOGIT_SPREAD = 3.0

QWEN2 = dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu", max_position_embeddings=32768,
             rms_norm_eps=1e-6, rope_theta=1e6, use_sliding_window=False)
QWEN3 = dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_act="silu", max_position_embeddings=40960,
             rms_norm_eps=1e-6, rope_theta=1e6, head_dim=128, attention_bias=False, use_sliding_window=False)
LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu", rms_norm_eps=1e-5, attention_bias=False,
             mlp_bias=False)


def llama3(factor):
    return dict(LLAMA, max_position_embeddings=131072, rope_theta=5e5, vocab_size=128256,
                rope_scaling=dict(rope_type="llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=8192))


def sizes(hidden, layers, heads, kv_heads, ffn, tied, **more):
    return dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=ffn, tie_word_embeddings=tied, **more)


SHAPES = {
    "tiny": dict(LLAMA, **sizes(64, 2, 4, 2, 160, False, vocab_size=320, max_position_embeddings=512, rope_theta=1e4)),
    "smollm2-135m": dict(LLAMA, **sizes(576, 30, 9, 3, 1536, True, vocab_size=49152, max_position_embeddings=8192, rope_theta=1e5)),
    "llama3.2-1b": dict(llama3(32.0), **sizes(2048, 16, 32, 8, 8192, True, head_dim=64)),
    "llama3.1-8b": dict(llama3(8.0), **sizes(4096, 32, 32, 8, 14336, False)),
    "qwen2.5-0.5b": dict(QWEN2, **sizes(896, 24, 14, 2, 4864, True, vocab_size=151936)),
    "qwen2.5-1.5b": dict(QWEN2, **sizes(1536, 28, 12, 2, 8960, True, vocab_size=151936)),
    "qwen2.5-3b": dict(QWEN2, **sizes(2048, 36, 16, 2, 11008, True, vocab_size=151936)),
    "qwen2.5-7b": dict(QWEN2, **sizes(3584, 28, 28, 4, 18944, False, vocab_size=152064)),
    "qwen3-0.6b": dict(QWEN3, **sizes(1024, 28, 16, 8, 3072, True, vocab_size=151936)),
    "qwen3-8b": dict(QWEN3, **sizes(4096, 36, 32, 8, 12288, False, vocab_size=151936)),
}

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
                 "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


class Weights:
    """Random tensors as bytes of one type."""

    def __init__(self, dtype, seed):
        self.dtype = dtype
        self.random = random.Random(seed)
        self.normal = [self.random.gauss(0.0, 1.0) for _ in range(POOL)]
        self.pools = {}

    def pool(self, mean, deviation):
        key = (mean, deviation)
        if key not in self.pools:
            values = [mean + deviation * x for x in self.normal]
            if self.dtype == "f16":
                packed = struct.pack(f"<{POOL}e", *values)
            else:
                full = array.array("f", values)
                if sys.byteorder == "big":
                    full.byteswap()
                packed = full.tobytes()
                if self.dtype == "bf16":  # the upper half of a float
                    half = bytearray(2 * POOL)
                    half[0::2], half[1::2] = packed[2::4], packed[3::4]
                    packed = bytes(half)
            self.pools[key] = memoryview(packed)
        return self.pools[key]

    def write(self, out, count, mean, deviation):
        pool = self.pool(mean, deviation)
        size = len(pool) // POOL
        at = self.random.randrange(POOL) * size
        left = count * size
        while left > 0:
            part = pool[at:at + left]
            out.write(part)
            left -= len(part)
            at = 0


def tensor_list(c):
    """(name, shape, mean, standard deviation) of every tensor, in file order."""
    hidden, layers, ffn = c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"]
    head = c.get("head_dim") or hidden // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    table = LOGIT_SPREAD / hidden ** 0.5   # deviation of the embedding, so of the residual at its start
    branch = LOGIT_SPREAD / (2 * layers) ** 0.5   # all branches together outweigh the embedding, or a tied head repeats its token
    tensors = [("model.embed_tokens.weight", [c["vocab_size"], hidden], 0.0, table)]
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors += [(p + "input_layernorm.weight", [hidden], 1.0, 0.1)]
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            tensors.append((p + f"self_attn.{name}_proj.weight", [rows, hidden], 0.0, hidden ** -0.5))
            if c["model_type"] == "qwen2":
                tensors.append((p + f"self_attn.{name}_proj.bias", [rows], 0.0, 0.1))
        if c["model_type"] == "qwen3":
            tensors += [(p + f"self_attn.{name}_norm.weight", [head], 1.0, 0.1) for name in "qk"]
        tensors += [
            (p + "self_attn.o_proj.weight", [hidden, q], 0.0, branch * q ** -0.5),
            (p + "post_attention_layernorm.weight", [hidden], 1.0, 0.1),
            (p + "mlp.gate_proj.weight", [ffn, hidden], 0.0, hidden ** -0.5),
            (p + "mlp.up_proj.weight", [ffn, hidden], 0.0, hidden ** -0.5),
            (p + "mlp.down_proj.weight", [hidden, ffn], 0.0, branch * ffn ** -0.5),
        ]
    tensors.append(("model.norm.weight", [hidden], 1.0, 0.1))
    if not c["tie_word_embeddings"]:
        tensors.append(("lm_head.weight", [c["vocab_size"], hidden], 0.0, table))
    return tensors


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def write_shard(path, tensors, weights, element_bytes):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, _ in tensors:
        size = elements(shape) * element_bytes
        header[name] = {"dtype": weights.dtype.upper(), "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for _, shape, mean, deviation in tensors:
            weights.write(out, elements(shape), mean, deviation)


def write_weights(folder, tensors, weights, shard_bytes):
    element_bytes = 4 if weights.dtype == "f32" else 2
    shards, left = [[]], shard_bytes
    for tensor in tensors:
        size = elements(tensor[1]) * element_bytes
        if shards[-1] and size > left:
            shards.append([])
            left = shard_bytes
        shards[-1].append(tensor)
        left -= size
    total = sum(elements(t[1]) for t in tensors) * element_bytes
    if len(shards) == 1:
        write_shard(f"{folder}/model.safetensors", shards[0], weights, element_bytes)
        return total
    index = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(f"{folder}/{name}", shard, weights, element_bytes)
        index.update({tensor[0]: name for tensor in shard})
    with open(f"{folder}/model.safetensors.index.json", "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, out, indent=1)
    return total


def write_tokenizer(folder, vocab_size):
    """Bytes, words that no text reaches (a drawn id still prints as something) and the special tokens of ChatML."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    spelling = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    words = [spelling[b] for b in range(256)]
    words += ["\u0120w%x" % i for i in range(vocab_size - 256 - len(SPECIAL))]
    added = [dict(id=len(words) + i, content=text, special=True, lstrip=False, rstrip=False, single_word=False, normalized=False)
             for i, text in enumerate(SPECIAL)]
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    with open(f"{folder}/tokenizer.json", "w") as out:
        json.dump(dict(version="1.0", added_tokens=added, normalizer=None, pre_tokenizer=byte_level, post_processor=None,
                       decoder=byte_level, model=dict(type="BPE", vocab={w: i for i, w in enumerate(words)}, merges=[])), out)
    with open(f"{folder}/tokenizer_config.json", "w") as out:
        json.dump(dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE), out, indent=1)
    end = len(words)
    with open(f"{folder}/generation_config.json", "w") as out:
        json.dump(dict(eos_token_id=[end + 2, end], pad_token_id=end), out, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder to write; made if absent")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="overrides a key of config.json")
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16")
    parser.add_argument("--shard-mib", type=int, default=4096, help="largest weight file")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = dict(SHAPES[options.shape], torch_dtype={"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[options.dtype])
    for item in options.set:
        key, _, value = item.partition("=")
        config[key] = json.loads(value)
    if config["vocab_size"] < 256 + len(SPECIAL):
        parser.error(f"vocab_size: {config['vocab_size']} found, {256 + len(SPECIAL)} or more expected")
    os.makedirs(options.out, exist_ok=True)
    for name in os.listdir(options.out):
        if name.endswith((".safetensors", ".safetensors.index.json")):
            os.remove(f"{options.out}/{name}")
    with open(f"{options.out}/config.json", "w") as out:
        json.dump(config, out, indent=1)
    write_tokenizer(options.out, config["vocab_size"])
    total = write_weights(options.out, tensor_list(config), Weights(options.dtype, options.seed), options.shard_mib << 20)
    print(f"{options.out}: {options.shape}, {options.dtype}, {total / 2 ** 20:.1f} MiB of weights")


if __name__ == "__main__":
    main()

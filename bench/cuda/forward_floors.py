#!/usr/bin/env python3
"""forward_floors.py ENGINE.json [SCENE...]: where forwards of 65 to 512 rows lose time, from the parts that forward_bench took.

Per operation, us a layer: measured, its bytes over 4.53 TB/s, its products at the tensor cores' peak, and what it takes beyond the longer of
both; the sum of a forward in ms. Attention's products are those of prompt rows. The head is one, with sampling in what was measured. The peak
is that of the clock which long replays of 256 rows hold at the power limit (h200/forward_2026-12-01_seventh.json): a short replay may run
faster, so that a loss by products is then told too small. Parts are measured apart and need not add up to the forward."""
import json
import re
import sys

READ_BYTES_US = 4.53e6
FLOPS_A_CYCLE = 132 * 4096   # bf16, dense, all multiprocessors
HEAD_DIM = 128
SHAPES = {"7b": {"layers": 28, "hidden": 3584, "ffn": 18944, "heads": 28, "kv_heads": 4, "vocab": 152064, "mhz": 1520},
          "3b": {"layers": 36, "hidden": 2048, "ffn": 11008, "heads": 16, "kv_heads": 2, "vocab": 151936, "mhz": 1785}}
SCENES = ["decode batch 256", "mixed base", "96 rows at 4096", "224 rows at 4096"]


def rows_of(scene):
    """(decode rows, prompt rows) of a scene whose decodes have 1,024 tokens each and whose prompt begins at 4,096."""
    if batch := re.match(r"decode batch (\d+) context 1024$", scene):
        return int(batch[1]), 0
    if scene == "mixed base 32 decodes":
        return 32, 0
    if mixed := re.match(r"mixed 32 decodes (\d+) rows at 4096$", scene):
        return 32, int(mixed[1])
    return None


def floors_of(shape, decodes, prompt):
    """Bytes and operations of each part, of one layer (the head: of all)."""
    rows, hidden = decodes + prompt, shape["hidden"]
    weights = {"input": hidden * (shape["heads"] + 2 * shape["kv_heads"]) * HEAD_DIM, "output": shape["heads"] * HEAD_DIM * hidden,
               "mlp": 2 * hidden * shape["ffn"], "down": shape["ffn"] * hidden}
    parts = {name: (2 * count, 2 * count * rows) for name, count in weights.items()}
    tokens = 1024 * decodes + (4096 + prompt if prompt else 0)
    parts["attention"] = (tokens * 2 * shape["kv_heads"] * HEAD_DIM * 2,
                          4 * shape["heads"] * HEAD_DIM * prompt * (4096 + (prompt + 1) / 2))
    head = shape["vocab"] * hidden
    parts["head"] = (2 * head, 2 * head * (decodes + (1 if prompt else 0)))
    return parts


def main():
    words = sys.argv[2:] or SCENES
    with open(sys.argv[1], encoding="utf-8") as file:
        forwards = json.load(file)["forward"]
    for model, shape in SHAPES.items():
        flops_us = FLOPS_A_CYCLE * shape["mhz"]
        for forward in forwards[model]:
            rows = rows_of(forward["scene"])
            if rows is None or not any(word in forward["scene"] for word in words):
                continue
            lost_ms = 0
            print(f"{model} {forward['scene']}: {forward['ms']:.2f} ms, {forward['kernels']} kernels")
            for name, (size, flops) in floors_of(shape, *rows).items():
                layers = 1 if name == "head" else shape["layers"]
                us, memory, products = forward[f"{name}_ms"] * 1e3 / layers, size / READ_BYTES_US, flops / flops_us
                loss = us - max(memory, products)
                lost_ms += loss * layers / 1e3
                print(f"  {name:9} {us:6.1f} us, memory {memory:5.1f}, products {products:5.1f}, beyond {loss:5.1f}: "
                      f"{loss * layers / 1e3:.2f} ms")
            print(f"  beyond the floors, all: {lost_ms:.2f} ms")


if __name__ == "__main__":
    main()

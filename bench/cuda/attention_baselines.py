#!/usr/bin/env python3
"""attention_baselines.py TAKT.csv OUT.csv PLOT.svg: times the same decode attention as attention_bench with torch, on the same
kind of paged cache, and joins and plots both.

Two baselines: "gather": blocks gathered by the block table, then scores, softmax and sum as plain torch operations; "sdpa":
the same gather, then torch's scaled_dot_product_attention; "sdpa_dense": only the latter, over keys and values that already lie
side by side (no paged engine has them so). Each in a CUDA graph, caches in turn so that none is found in L2."""
import csv
import sys

import torch
import torch.nn.functional as F

HEAD_DIM, BLOCK = 128, 16
SHAPES = {"7b": (28, 4), "3b": (16, 2)}
COLD_BYTES = 256 << 20
READ_TB_S = 4.53


def gathered(cache, table, batch, heads):
    """Keys and values [batch, kv head, token, dim], side by side."""
    blocks = cache[table].view(batch, -1, 2, heads, BLOCK, HEAD_DIM)
    return (blocks[:, :, i].permute(0, 2, 1, 3, 4).reshape(batch, heads, -1, HEAD_DIM) for i in (0, 1))


def plain(q, k, v):
    batch, heads, _, dim = q.shape
    grouped = q.view(batch, k.shape[1], -1, dim)
    weights = torch.softmax(grouped @ k.transpose(-1, -2) * dim**-0.5, -1)
    return (weights @ v).view(batch, heads, 1, dim)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def median_us(function, copies):
    """Microseconds of one call, each copy in turn in one graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            function(i)
    graph.replay()
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / copies)
    return sorted(times)[2]


def baselines(shape, batch, context):
    heads, kv_heads = SHAPES[shape]
    blocks = batch * context // BLOCK
    block_bytes = 2 * kv_heads * BLOCK * HEAD_DIM * 2
    copies = max(2, min(16, COLD_BYTES // (blocks * block_bytes) + 1))
    caches = [torch.randn(blocks, 2, kv_heads, BLOCK, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    table = torch.randperm(blocks, device="cuda").view(batch, -1)
    q = torch.randn(batch, heads, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    dense = [tuple(gathered(c, table, batch, kv_heads)) for c in caches]
    yield "gather", median_us(lambda i: plain(q, *gathered(caches[i], table, batch, kv_heads)), copies)
    yield "sdpa", median_us(lambda i: fused(q, *gathered(caches[i], table, batch, kv_heads)), copies)
    yield "sdpa_dense", median_us(lambda i: fused(q, *dense[i]), copies)


def plot(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batches = (1, 16, 64, 256)
    figure, axes = plt.subplots(len(SHAPES), len(batches), figsize=(15, 6.5), sharey=True)
    for line, shape in zip(axes, SHAPES):
        for axis, batch in zip(line, batches):
            for name in ("takt", "sdpa_dense", "sdpa", "gather"):
                points = [(int(r["context"]), float(r["tb_s"])) for r in rows
                          if (r["shape"], int(r["batch"]), r["implementation"]) == (shape, batch, name)]
                axis.plot(*zip(*points), marker="o", markersize=3, label=name)
            axis.axhline(READ_TB_S, color="grey", linestyle=":")
            axis.set_xscale("log", base=2)
            axis.set_title(f"{shape}, batch {batch}", fontsize=9)
            axis.set_xlabel("context, tokens", fontsize=8)
        line[0].set_ylabel("TB/s of keys and values")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    ours, out, picture = sys.argv[1:4]
    with open(ours, newline="") as f:
        rows = list(csv.DictReader(f))
    for row in list(rows):
        shape, batch, context = row["shape"], int(row["batch"]), int(row["context"])
        kv_bytes = batch * context * 4 * SHAPES[shape][1] * HEAD_DIM
        try:
            for name, us in baselines(shape, batch, context):
                rows.append({"shape": shape, "batch": batch, "context": context, "implementation": name, "us": f"{us:.2f}",
                             "tb_s": f"{kv_bytes / us / 1e6:.3f}"})
        except torch.cuda.OutOfMemoryError:
            print("no memory for", shape, batch, context)
        torch.cuda.empty_cache()
    with open(out, "w", newline="") as f:
        writer = csv.DictWriter(f, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, picture)


if __name__ == "__main__":
    main()

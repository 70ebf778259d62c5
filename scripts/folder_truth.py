#!/usr/bin/env python3
"""Writes what float32 transformers make of a Hugging Face folder or of a GGUF file, for `step_bench --truth`: greedy ids, margins, log-probabilities.

One JSON object a line: `prompt_ids` (drawn), `f32_ids`, `f32_seconds` (the second likeliest), `f32_margins` (largest logit less second
largest), `f32_logprobs` (of the chosen); with --bf16 also what the same model in bf16 makes of these steps: `bf16_ids` and
`bf16_margins` (its logit of f32_ids less that of f32_seconds). Runs on the GPU where torch sees one. Needs torch and transformers; for
GGUF, whose blocks become float32, gguf too.

  scripts/folder_truth.py FOLDER OUT.jsonl --prompts 8 --tokens 64
"""

import argparse
import json
import os
import random

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="generated after each prompt")
    parser.add_argument("--longest", type=int, default=600, help="prompt lengths go up to this")
    parser.add_argument("--bf16", action="store_true", help="and the same model in bf16, along float32's text")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder, source = options.folder, {}
    if folder.endswith(".gguf"):
        folder, source = os.path.dirname(folder), {"gguf_file": os.path.basename(folder)}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **source).to(device).eval()
    draw, rows = random.Random(7), []
    with torch.inference_mode():
        for i in range(options.prompts):
            length = 1 + options.longest * i // max(options.prompts - 1, 1)
            prompt = [draw.randrange(256, model.config.vocab_size - 8) for _ in range(length)]
            ids, seconds, margins, logprobs = [], [], [], []
            step = model(input_ids=torch.tensor([prompt], device=device), use_cache=True, logits_to_keep=1)
            for _ in range(options.tokens):
                logits = step.logits[0, -1].double()
                top = torch.topk(logits, 2)
                ids.append(int(top.indices[0]))
                seconds.append(int(top.indices[1]))
                margins.append(float(top.values[0] - top.values[1]))
                logprobs.append(float(top.values[0] - torch.logsumexp(logits, 0)))
                step = model(input_ids=top.indices[:1].view(1, 1), past_key_values=step.past_key_values, use_cache=True)
            rows.append(dict(id=i, prompt_ids=prompt, f32_ids=ids, f32_seconds=seconds, f32_margins=margins, f32_logprobs=logprobs))
        if options.bf16:   # loaded again: a conversion would round the rotations' frequencies too
            del model
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa", **source).to(device).eval()
            head = model.get_output_embeddings().weight.float()
        for row in rows if options.bf16 else []:
            fed = torch.tensor([row["prompt_ids"] + row["f32_ids"][:-1]], device=device)
            logits = model.base_model(input_ids=fed).last_hidden_state[0, -options.tokens:].float() @ head.T
            at = torch.arange(options.tokens, device=device)
            row["bf16_ids"] = logits.argmax(-1).tolist()
            row["bf16_margins"] = (logits[at, row["f32_ids"]] - logits[at, row["f32_seconds"]]).tolist()
    with open(options.out, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{options.out}: {options.prompts} prompts, {options.tokens} tokens each, float32 on {device}")


if __name__ == "__main__":
    main()

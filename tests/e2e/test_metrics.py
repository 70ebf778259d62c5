"""/metrics: every series of the contract with its type and labels, in a text that a strict reader takes, and true counts."""
import asyncio
import hashlib
import json
import re

import pytest

from conftest import Server
from frames import connect, finish, receive, send
from test_http import CHAT, HELLO, call

CLASSES = {"class": {"default", "batch"}}
MODES = {"mode": {"decode", "prefill", "mixed"}}
REGIMES = {"regime": {"decode", "mixed_small", "mixed_large"}}
CODES = {"bad_request", "duplicate_id", "context_too_long", "too_large", "unauthorized", "not_found", "queue_full", "deadline_unreachable",
         "rate_limited", "deadline_exceeded", "draining", "device_lost", "internal"}
MODEL = {"model_name": {"sim"}}
# name: (type, label: its values)
SERIES = {
    **{"takt_" + name: ("gauge", {}) for name in (
        "requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_total", "kv_usage_ratio", "connections", "websockets",
        "budget_trim")},
    **{"takt_" + name: ("counter", {}) for name in (
        "prompt_tokens_total", "cached_prompt_tokens_total", "generated_tokens_total", "requests_accepted_total", "preemptions_total",
        "http_requests_total")},
    "takt_requests_refused_total": ("counter", {"code": CODES}),
    "takt_requests_finished_total": ("counter", {"reason": {"stop", "length", "cancelled", "error"}}),
    "takt_sla_misses_total": ("counter", {**CLASSES, "kind": {"ttft", "itl"}}),
    "takt_ttft_seconds": ("histogram", CLASSES), "takt_inter_token_seconds": ("histogram", CLASSES),
    **{f"takt_{name}_seconds": ("histogram", {}) for name in ("queue", "request", "cancel_to_free")},
    "takt_steps_total": ("counter", {**MODES, "graph": {"yes", "no"}}), "takt_step_seconds": ("histogram", MODES),
    "takt_step_prefill_tokens": ("histogram", {}), "takt_step_padding_ratio": ("histogram", {}),
    "takt_cost_model_error_ratio": ("gauge", REGIMES), "takt_cost_model_margin": ("gauge", REGIMES),
    "takt_sla_infeasible": ("gauge", CLASSES),
    "takt_late_milliseconds_total": ("counter", {"cause": {"prefill", "padding", "preemption", "host", "reader", "device"}}),
    **{"vllm:" + name: ("gauge", MODEL) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")},
    "vllm:cache_config_info": ("gauge", {**MODEL, "block_size": {"16"}, "num_gpu_blocks": {"256"}}),
    "vllm:time_to_first_token_seconds": ("histogram", MODEL), "vllm:inter_token_latency_seconds": ("histogram", MODEL),
}


class Page:
    """What a strict reader makes of the text: one head a family, its samples behind it, none twice."""

    def __init__(self, text):
        assert text.endswith("\n")
        self.types, self.samples, family = {}, {}, None
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family = line.split()[2]
                assert family not in self.types, f"{family} has two heads"
            elif line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                assert name == family
                self.types[name] = kind
            else:
                found = re.fullmatch(r'([a-z_:]+)(?:\{((?:[a-z_]+="[^"]*",?)*)\})? (\S+)', line)
                assert found, line
                name, labels, value = found.groups()
                endings = "(_bucket|_sum|_count)" if self.types[family] == "histogram" else ""
                assert re.fullmatch(re.escape(family) + endings, name), f"{name} stands under {family}"
                key = name, tuple(sorted(re.findall(r'([a-z_]+)="([^"]*)"', labels or "")))
                assert key not in self.samples, f"{key} stands twice"
                self.samples[key] = float(value)

    def family(self, name):
        ending = "_count" if self.types[name] == "histogram" else ""
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name + ending}

    def total(self, name, **labels):
        return sum(value for own, value in self.family(name).items() if set(labels.items()) <= set(own))


def read(server):
    return Page(call(server, "/metrics")[2])


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    config = tmp_path_factory.mktemp("metrics") / "config.toml"
    config.write_text('[device]\nkind = "sim"\n[sim]\nscale = 0\n[model]\nmax_context = 512\n[scheduler]\nmax_running = 8\n'
                      '[server]\nmax_message_kib = 8\n[[sla.class]]\nname = "batch"\nitl_ms = 1000\nttft_ms = 60000\n'
                      f'[[tenant]]\nname = "a"\nkey_sha256 = "{hashlib.sha256(b"key-a").hexdigest()}"\n'
                      f'[[tenant]]\nname = "b"\nkey_sha256 = "{hashlib.sha256(b"key-b").hexdigest()}"\ntokens_per_minute = 20\n')
    server = Server("--config", str(config))
    yield server
    assert server.stop() == 0


KEY = {"Authorization": "Bearer key-a"}
OTHER = {"Authorization": "Bearer key-b"}


def test_the_text_has_every_series_once_with_its_type_and_labels(classes):
    assert call(classes, CHAT, {**HELLO, "class": "batch"}, KEY)[0] == 200
    page = read(classes)
    assert page.types == {name: kind for name, (kind, _) in SERIES.items()}
    for name, (kind, labels) in SERIES.items():
        own = [dict(one) for one in page.family(name)]
        count = 1
        for label, values in labels.items():
            assert {one[label] for one in own} == values, (name, label)
            count *= len(values)
        assert len(own) == count and all(set(one) == set(labels) for one in own), name
        if kind != "histogram":
            continue
        for one in page.family(name):
            buckets = [(dict(key)["le"], value) for (sample, key), value in page.samples.items()
                       if sample == name + "_bucket" and set(one) <= set(key)]
            counts = [value for _, value in buckets]
            assert counts == sorted(counts) and buckets[-1] == ("+Inf", page.family(name)[one]), name
            if name.endswith("_seconds"):
                assert buckets[0][0] == "0.0005", name
    for alias, name in (("num_requests_running", "requests_running"), ("num_requests_waiting", "requests_waiting"),
                        ("kv_cache_usage_perc", "kv_usage_ratio"), ("time_to_first_token_seconds", "ttft_seconds"),
                        ("inter_token_latency_seconds", "inter_token_seconds")):
        assert page.total("vllm:" + alias) == page.total("takt_" + name), alias
    assert page.total("takt_kv_blocks_total") == 256     # as the alias says: those that requests may hold


def test_a_refusal_is_counted_by_its_code_wherever_it_is_said(classes):
    def refused(code, path, body, headers):
        before = read(classes)
        answer = call(classes, path, body, headers)
        assert json.loads(answer[2])["error"]["code"] == code, answer[2]
        after = read(classes)
        grown = {dict(labels)["code"]: value - before.family("takt_requests_refused_total")[labels]
                 for labels, value in after.family("takt_requests_refused_total").items()}
        assert {name: count for name, count in grown.items() if count} == {code: 1}, grown
    completions = "/v1/completions"
    refused("unauthorized", CHAT, HELLO, {})
    refused("bad_request", CHAT, b"{", KEY)
    refused("bad_request", CHAT, {**HELLO, "temperature": -1}, KEY)
    refused("bad_request", completions, {"prompt": [99999]}, KEY)
    refused("bad_request", "/v1/responses", {"input": 5}, KEY)
    refused("not_found", CHAT, {**HELLO, "model": "another"}, KEY)
    refused("context_too_long", completions, {"prompt": "x" * 600}, KEY)
    refused("too_large", completions, {"prompt": "x" * 9000}, KEY)
    assert call(classes, completions, {"prompt": "x", "max_tokens": 40, "ignore_eos": True}, OTHER)[0] == 200
    refused("rate_limited", completions, {"prompt": "x", "max_tokens": 1}, OTHER)

    async def body():
        async with connect(classes, additional_headers=KEY) as stream:
            await stream.send("not json")
            return await receive(stream)
    before = read(classes).total("takt_requests_refused_total", code="bad_request")
    assert asyncio.run(body())["code"] == "bad_request"
    assert read(classes).total("takt_requests_refused_total", code="bad_request") == before + 1


def test_the_counts_are_those_of_what_was_asked(slow_sim):
    before = read(slow_sim)

    async def body():
        async with connect(slow_sim) as stream:
            await send(stream, type="generate", id="a", prompt="m" * 40, max_tokens=12, ignore_eos=True)
            done = await finish(stream, "a")
            await send(stream, type="generate", id="b", prompt="m" * 40, max_tokens=4000, ignore_eos=True)
            while (await receive(stream))["type"] != "delta":
                pass
            await send(stream, type="cancel", id="b")
            return done, await finish(stream, "b")
    done, cancelled = asyncio.run(asyncio.wait_for(body(), 30))
    # The blocks are back when the step that ran has ended.
    slow_sim.wait_for("takt_cancel_to_free_seconds_count", before.total("takt_cancel_to_free_seconds") + 1)
    slow_sim.wait_for("takt_requests_running", 0)
    after = read(slow_sim)

    def grown(name, **labels):
        return after.total(name, **labels) - before.total(name, **labels)
    tokens = 12 + cancelled[-1]["usage"]["completion_tokens"]
    assert grown("takt_requests_accepted_total") == 2 and grown("takt_prompt_tokens_total") == 80
    assert grown("takt_cached_prompt_tokens_total") == sum(end[-1]["usage"]["cached_tokens"] for end in (done, cancelled))
    assert grown("takt_requests_finished_total", reason="length") == 1 and grown("takt_requests_finished_total", reason="cancelled") == 1
    assert grown("takt_requests_finished_total") == 2 and grown("takt_cancel_to_free_seconds") == 1
    assert grown("takt_ttft_seconds") == grown("takt_queue_seconds") == grown("takt_request_seconds") == 2
    # The step that ran when the cancel came may have sampled one more, which nobody was given.
    assert tokens <= grown("takt_generated_tokens_total") <= tokens + 1
    assert tokens - 2 <= grown("takt_inter_token_seconds") <= tokens - 1
    assert grown("takt_steps_total", graph="no") == 0 < grown("takt_steps_total", mode="decode", graph="yes")
    assert grown("takt_step_prefill_tokens") == grown("takt_step_padding_ratio") == grown("takt_steps_total")
    assert grown("takt_step_seconds") == grown("takt_steps_total")


def test_the_middle_gap_of_an_answer_is_its_nearest_rank(slow_sim):
    """Of two gaps the shorter one, as `takt bench` and `takt simulate` count."""
    async def body():
        async with connect(slow_sim) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=3, ignore_eos=True)
            return (await finish(stream, "a"))[-1]["timings"]
    timings = asyncio.run(asyncio.wait_for(body(), 30))
    assert timings["itl_p50_ms"] + timings["itl_max_ms"] == pytest.approx(timings["decode_ms"], abs=1e-6)

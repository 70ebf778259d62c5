"""bench/run_rival.py and run_cpu.py: which samples a table takes for which placement of the cores, and when it is a result."""
import json
import sys
import types

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import run_cpu     # noqa: E402
import run_rival   # noqa: E402


def samples(*pairs):
    return [{"rate": rate, "complexes": complexes} if complexes else {"rate": rate} for rate, complexes in pairs]


def test_medians_of_a_placement_are_of_its_own_samples():
    ours = samples((300, 1), (500, 2), (310, 1), (320, 1), (900, None))
    theirs = samples((100, 1), (125, 2), (1, None))
    found = run_rival.by_complexes(ours, theirs)
    assert found["1"] == {"takt": 310, "llama.cpp": 100, "ratio": 3.1, "samples": [3, 1]}
    assert found["2"] == {"takt": 500, "llama.cpp": 125, "ratio": 4, "samples": [1, 1]}


def test_a_placement_that_one_engine_never_had_is_left_out():
    assert list(run_rival.by_complexes(samples((300, 1), (500, 2)), samples((100, 1)))) == ["1"]
    assert run_rival.by_complexes(samples((300, None)), samples((100, None))) == {}


def test_a_table_takes_the_place_of_the_last_one_only_with_all_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(run_cpu, "RESULTS", str(tmp_path / "results"))
    kept = tmp_path / "results/curves.json"
    kept.parent.mkdir()
    kept.write_text("of an earlier run")
    options = types.SimpleNamespace(model=["m.gguf"], case=["batch-1", "batch-2"], threads=[2], busy=0, isa="", activations="",
                                    repeat=2, work=str(tmp_path / "work"))
    jobs = run_rival.make_jobs(options)
    sample = {"rate": 1.0, "weight_bytes": 1, "bandwidth": 1.0}
    state = {"head": {}, "samples": {run_rival.key_of(job): [sample, sample] for job in jobs}}
    last = state["samples"][run_rival.key_of(jobs[-1])]
    partial = tmp_path / "work/partial/curves.json"

    del last[1]
    run_cpu.write_sections(options, state, {"curves": jobs})
    assert kept.read_text() == "of an earlier run"
    assert len(json.loads(partial.read_text())["table"]) == 2

    last.append(sample)
    run_cpu.write_sections(options, state, {"curves": jobs})
    assert len(json.loads(kept.read_text())["table"]) == 2
    assert not partial.exists()

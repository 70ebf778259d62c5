"""bench/run_rival.py: which samples a table takes for which placement of the cores."""
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
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

"""Needs by hand, what is counted, and the rules of the verdicts."""

import json
from types import SimpleNamespace

from experiments import wait_k
from experiments.judging import FAILS, HOLDS
from experiments.wait_k import ALL_K, EXPERIMENT, JUDGED, SEARCHED, THREE, WHOLE, needed_k
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, job_in
from transformer_jax.commands import evaluate as command
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.use.loading import load_model


def test_needs_by_hand():
    # Yesterday he sold a car -> Gestern verkaufte er ein Auto: the verb is written one word early.
    links = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)]
    assert needed_k(links, [0, 1, 2, 3, 4, -1], [0, 1, 2, 3, 4, -1]) == 2
    # "sold" has two subwords, and a verb is written with its first one.
    assert needed_k(links, [0, 1, 2, 2, 3, 4, -1], [0, 1, 2, 3, 4, -1]) == 3
    assert needed_k(links, [0, 1, 2, 2, 3, 4, -1], [0, 0, 1, 2, 3, 4, -1]) == 2
    # A verb at the end is written late; a word without links may come at any time.
    assert needed_k([(1, 4)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]) == 1
    assert needed_k([(4, 0)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]) == 5


def test_matches_are_counted_by_need_at_every_k(tmp_path, monkeypatch):
    """The subwords are those of a run's vocabulary; what was translated is made up."""
    pairs = built_in_pairs("test", 12)
    workdir = runs.copy_of_run(tmp_path / "run")
    asked = []
    (workdir / "run.sha256.json").unlink()
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["wait_k"] = 1
    (workdir / "config.json").write_text(json.dumps(config))

    def evaluate(folder, split, beam_size, overrides):
        asked.append((folder, split, beam_size, overrides))
        print("scores")
        path = tmp_path / "test.txt"
        right = 3 if overrides["decode.wait_k"] == 1 else 7
        lines = [pair.tgt if n < right else "no" for n, pair in enumerate(pairs)]
        path.write_text("".join(f"{line}\n" for line in lines))
        latency = {"average_lagging_of_reference": 2.5}
        path.with_suffix(".json").write_text(json.dumps({"latency": latency}))
        return SimpleNamespace(pairs=pairs, hypotheses=path, scores=SimpleNamespace(bleu=50.0))

    monkeypatch.setattr(command, "evaluate", evaluate)
    found = wait_k.by_k(job_in(EXPERIMENT, workdir))
    assert [overrides["decode.wait_k"] for *_, overrides in asked] == [*SEARCHED]
    assert {one[:3] for one in asked} == {(str(workdir), "test", 1)}
    assert found["5"]["bleu"] == 50.0 and found["5"]["lagging"] == 2.5
    for k, right in (("1", 3), ("9", 7)):
        totals = [sum(column) for column in zip(*found[k]["exact"].values(), strict=True)]
        assert totals == [12, right]
    vocabulary = load_model(str(workdir)).vocabulary
    assert len(found["1"]["exact"]) > 1 and vocabulary.size
    assert wait_k.exact_share(found, 1, 1, WHOLE) == 0.25


def evidence(exact, bleu=90.0):
    """Matches of 10 sentences that need 1 and 10 that need 6, at each k; all with the whole."""
    counts = {str(k): {"1": [10, near], "6": [10, far]} for k, (near, far) in exact.items()}
    counts[str(WHOLE)] = {"1": [10, 10], "6": [10, 8]}
    return {k: {"bleu": bleu, "lagging": 1.0, "exact": own} for k, own in counts.items()}


def test_shares_are_relative_to_the_whole_source():
    found = evidence({3: (5, 2)})
    assert (
        wait_k.exact_share(found, 3, 1, 3) == 0.5
        and wait_k.relative_share(found, 3, 4, WHOLE) == 2 / 8
    )
    few = evidence(dict.fromkeys(JUDGED, (10, 1)))  # what is read is right, the rest is not
    assert wait_k.verdicts_of(by_seed(ALL_K, 3 * [few]), [])[1][1] == HOLDS
    assert (
        wait_k.exact_share(found, 3, 2, 5) is None and wait_k.relative_share(found, 3, 2, 5) is None
    )


def test_each_claim_looks_at_its_own_numbers():
    found = {}
    for seed in range(3):
        found[ALL_K, seed] = evidence({1: (5, 1), 3: (10, 1), 5: (10, 7)}, bleu=90 + seed / 100)
        found[THREE, seed] = evidence({3: (10, 1)}, bleu=91.5)
    verdicts = [verdict for _, verdict in wait_k.verdicts_of(found, [2.0, 2.1, 2.2])]
    assert verdicts[:2] == [FAILS, HOLDS]  # k = 1: half of the near ones, and few of the far ones
    assert verdicts[2:4] == [HOLDS, HOLDS]  # k = 3
    assert verdicts[4:6] == [HOLDS, FAILS]  # k = 5: the far ones are right too
    assert verdicts[6:] == [FAILS, FAILS]  # 1.5 points of BLEU, and 2 by reading one way

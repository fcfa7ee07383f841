"""A change that makes the method worse fails: scores against stored ones, with their Monte-Carlo error."""

import pytest
import stored_scores as scores
import torch

from fmcpe import Stack, candidates


def test_stored_scores_are_complete_and_a_worse_one_is_seen():
    known = scores.stored()
    assert set(known) == set(scores.PROBLEMS) and all(len(runs) == scores.RUNS for runs in known.values())
    for run in range(scores.RUNS):  # none of the stored runs is worse than all of them
        assert scores.compared({problem: runs[run] for problem, runs in known.items()})[1] == []
    first = {problem: runs[0] for problem, runs in known.items()}
    everywhere = {p: {key: value + 0.05 for key, value in row.items()} for p, row in first.items()}
    assert {line.split()[3] for line in scores.compared(everywhere)[1] if line.startswith("mean of all")} == set(
        scores.SCORES
    )
    one = first | {"offset": first["offset"] | {"log_energy": first["offset"]["log_energy"] + 0.2}}
    assert next(line.split()[0] for line in scores.compared(one)[1]) == "offset"


@pytest.mark.nightly
def test_no_score_is_worse_than_the_stored_ones():
    """If the method is better, or worse for a reason, store new scores: python tests/stored_scores.py."""
    torch.set_num_threads(1)
    table, worse = scores.compared(scores.all_problems())
    assert not worse, f"worse: {worse}\n{table}"


@pytest.mark.nightly
def test_a_method_that_is_worse_fails():
    """Negative control: the stack without two of its candidates."""
    recipe = Stack([candidates.Prior(), candidates.Uncorrected(), candidates.ResidualShift()])
    found = {name: scores.run(name, 0, recipe) for name in ("gaussian", "zoo/linear-gain-offset")}
    assert scores.compared(found)[1]

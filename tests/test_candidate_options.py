"""Options of the candidates, of `Stack` and of `Paper`: every field refuses what it cannot mean."""

import math
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import simulate

from fmcpe import FMCPE, Paper, Stack, candidates

RECIPES = [type(candidate) for candidate in candidates.default()] + [Stack, Paper]
OPTIONS = [(recipe, field) for recipe in RECIPES for field in fields(recipe)]
NO_NUMBERS = ("7", None, [1], (), {}, object(), torch.tensor(1.0), 1j, math.nan, math.inf, -math.inf, -1, 10**400, True)
WRONG = {
    bool: ("yes", None, 0, 1.0, [], math.nan, 10**400, -1),
    int: (*NO_NUMBERS, 2.5, 1e9, 10_000_000),
    float: (*NO_NUMBERS, 1e300),
    str: ("none", None, 1, 0.5, True, ["euler"], math.nan, -1, 10**400),
    tuple: ("12", None, 3, 1.5, True, math.nan, {1, 2}, (1.5,), (0,), (-1,), (math.nan,), (True,), (10**400,), ("1",), ((1,),)),
}  # fmt: skip
ZERO = {
    (candidates.FineTuned, "epochs"), (candidates.FineTuned, "replay"), (candidates.FineTuned, "level"),
    (Stack, "preference"), (Stack, "shrinkage"), (Stack, "smallest"),
}  # fmt: skip


def wrong_values(recipe, field):
    if field.name == "candidates":
        values = ((), None, 3, "prior", b"prior", [3], candidates.Prior(), [candidates.Prior], math.nan, True, 10**400)
    elif field.name == "embedding_net":
        values = ("auto", 3, torch.nn.Linear, math.nan, True, (), -1, 10**400)
    else:
        values = WRONG[type(field.default)]
    return [*values] + ([0] if type(field.default) in (int, float) and (recipe, field.name) not in ZERO else [])


@pytest.mark.parametrize(("recipe", "field"), OPTIONS, ids=[f"{r.__name__}.{f.name}" for r, f in OPTIONS])
def test_wrong_values_are_refused_by_name(recipe, field):
    """In three parts: what was expected, what was given, what to do."""
    for value in wrong_values(recipe, field):
        with pytest.raises((ValueError, TypeError), match=r"(?s)^Expected .+, got .+\. (Try|Pass) ") as caught:
            recipe(**{field.name: value})
        assert field.name in str(caught.value) and len(str(caught.value)) < 400, value


@pytest.mark.parametrize(
    ("candidate", "option", "value"),
    [
        (candidates.FineTuned, "level", 7), (candidates.FineTuned, "validation", 1.0),
        (candidates.SyntheticLikelihood, "degrees", (400,)), (candidates.SyntheticLikelihood, "degrees", 3),
        (candidates.SyntheticLikelihood, "degrees", ()), (candidates.SyntheticLikelihood, "proposals", 4),
        (Stack, "smallest", 1.5), (Stack, "out_of_range", 1.0), (Stack, "pseudo_count", 0.0), (Paper, "num_statistics", 10),
    ],
)  # fmt: skip
def test_values_beyond_the_limits_are_refused(candidate, option, value):
    with pytest.raises(ValueError, match=rf"^Expected {option} to be .+, got .+\. Try {option}="):
        candidate(**{option: value})


def test_defaults_and_numbers_of_numpy_are_accepted_as_pythons():
    for recipe in RECIPES:
        assert recipe() == recipe(**{f.name: f.default for f in fields(recipe) if f.name != "candidates"})
    stack = Stack(folds=np.int64(3), preference=np.float32(0.5), shrinkage=Fraction(1, 2))
    assert [type(each) for each in (stack.folds, stack.preference, stack.shrinkage)] == [int, float, float]
    assert Stack(iter(stack.candidates)) == Stack()
    assert candidates.SyntheticLikelihood(degrees=[np.int64(2)]).degrees == (2,)


def test_there_are_at_most_25_numbers():
    """Of the default recipe; the degrees of the synthetic likelihood count as one."""
    numbers = [
        (recipe.__name__, field.name)
        for recipe, field in OPTIONS
        if recipe is not Paper and type(field.default) in (int, float, tuple)
    ]
    assert len(numbers) <= 25, numbers


@pytest.mark.filterwarnings("ignore::fmcpe.FMCPEWarning")
@pytest.mark.parametrize(
    ("candidate", "recipe"),
    [
        (candidates.FineTuned(steps=2, epochs=0, replay=0, level=0), {}),
        (candidates.FineTuned(steps=2, epochs=0, validation=0.99), {}),
        (candidates.JointFlow(steps=2, validation=0.99), {}),
        (candidates.SyntheticLikelihood(degrees=(8,), modes=1, proposals=8), {}),
        (candidates.ResidualShift(), {"preference": 0, "shrinkage": 0, "smallest": 0}),
        (candidates.ResidualShift(), {"smallest": 1}),
    ],
)
def test_values_at_the_limits_can_be_fitted(base, pairs, candidate, recipe):
    stack = Stack([candidates.Prior(), candidates.Uncorrected(), candidate], folds=2, repeats=1, draws=4, **recipe)
    posterior = FMCPE(base, simulate, recipe=stack).fit(*pairs, seed=0, show_progress_bars=False)
    assert sum(posterior.weights.values()) == pytest.approx(1.0, abs=1e-5)
    assert bool(torch.isfinite(posterior.sample((3,), x=pairs[1][0], seed=0)).all())


def test_polynomials_of_too_many_terms_fall_back_to_linear_ones():
    from sbi.utils import BoxUniform

    from fmcpe.base_posteriors.adapters import as_base_posterior
    from fmcpe.problem import build_problem

    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(12), torch.ones(12))
    theta = prior.sample((30,))
    problem = build_problem(as_base_posterior(lambda x: x, prior=prior), None, prior, theta, theta, None)
    fitted = candidates.SyntheticLikelihood(degrees=(3,)).fit(problem, torch.arange(30))
    assert fitted.features.degree == 1


@pytest.mark.parametrize("fraction", [1e-6, 0.999])
def test_the_paper_keeps_pairs_to_train_on_and_to_validate_with(base, pairs, fraction):
    recipe = Paper(epochs=2, steps=1, validation_fraction=fraction)
    method = FMCPE(base, simulate, recipe=recipe)
    posterior = method.fit(*pairs, seed=0, show_progress_bars=False)
    assert bool(torch.isfinite(posterior.sample((3,), x=pairs[1][0], seed=0)).all())

"""Bad input by machine: a result that keeps the contract, or an error that says what to do; nothing else.

A case is a prior, pairs, observations, and at most one damage to each of theta, y and x. No network is trained: the base
posterior is a Gaussian regression in closed form.
"""

import signal
import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sbi.utils import BoxUniform, MultipleIndependent
from torch.distributions import Independent, LogNormal, Normal

from fmcpe import FMCPE, FMCPEWarning, Stack
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates import Prior, ResidualShift, SyntheticLikelihood, Uncorrected
from fmcpe.spaces import within_support

DOCUMENTED = (ValueError, TypeError, NotImplementedError)
LIGHT = Stack([Prior(), Uncorrected(), ResidualShift()], folds=2, repeats=1, draws=8)
LIKELIHOOD = Stack([Prior(), SyntheticLikelihood(degrees=(1,))], folds=2, repeats=1, draws=8)
SHAPES = {"number": (1,), "vector": (4,), "image": (2, 3)}
WRONG_NUMBERS = ("nan", "inf", "-inf")
DTYPES = (
    "int64", "float16", "float64", "bool", "object", "str", "list", "complex128", "longdouble", ">f8", "reversed", "read-only",
    "masked", "offset",
)  # fmt: skip
DAMAGE_THETA = (
    *WRONG_NUMBERS,
    *DTYPES,
    "constant",
    "same",
    "twice",
    "low",
    "outside",
    "turned",
    "flat",
)
DAMAGE_Y = (*WRONG_NUMBERS, *DTYPES, "dead", "same", "huge", "tiny", "turned", "short", "flat", "deep")
DAMAGE_X = (*WRONG_NUMBERS, *DTYPES, "dead", "huge", "tiny", "far", "empty", "short", "deep", "flat")


@dataclass(frozen=True)
class Case:
    """What a test is made of; printed by hypothesis where it fails."""

    dim: int
    prior: str
    data: str
    scale_theta: float
    scale_y: float
    pairs: int
    observations: int
    theta: str
    y: str
    x: str
    density: bool
    likelihood: bool
    seed: int


def mostly_none(kinds):
    """Nothing wrong in half of the cases, so that many get as far as an answer."""
    return st.sampled_from(("none",) * len(kinds) + kinds)


CASES = st.builds(
    Case,
    dim=st.sampled_from([1, 2, 3, 30]),
    prior=st.sampled_from(["box", "normal", "half", "mixed"]),
    data=st.sampled_from(list(SHAPES)),
    scale_theta=st.sampled_from([1.0, 1.0, 1e-12, 1e12]),
    scale_y=st.sampled_from([1.0, 1.0, 1e-12, 1e12]),
    pairs=st.sampled_from([0, 1, 2, 3, 12, 24]),
    observations=st.sampled_from([1, 2, 5]),
    theta=mostly_none(DAMAGE_THETA),
    y=mostly_none(DAMAGE_Y),
    x=mostly_none(DAMAGE_X),
    density=st.booleans(),
    likelihood=st.sampled_from([False] * 7 + [True]),
    seed=st.integers(0, 3),
)


def prior_of(case):
    one = case.scale_theta * torch.ones(case.dim)
    if case.prior == "box":
        return BoxUniform(-one, 2 * one)
    if case.prior == "normal":
        return Independent(Normal(one, one), 1)
    if case.prior == "mixed" and case.dim > 1:  # bounded, half-bounded and unbounded parameters
        one = one[:1]
        parts = [BoxUniform(-one, 2 * one), LogNormal(one.log(), one / one), Normal(one, one)]
        return MultipleIndependent([parts[k % 3] for k in range(case.dim)], validate_args=False)
    return Independent(LogNormal(one.log(), torch.ones(case.dim)), 1)


class Setting:
    """Simulator and base posterior of a case: x is linear in θ, and θ is read back from x."""

    def __init__(self, case):
        self.case, self.prior, self.shape = case, prior_of(case), SHAPES[case.data]
        size = int(np.prod(self.shape))
        generator = torch.Generator().manual_seed(case.seed)
        self.matrix = torch.randn(case.dim, size, generator=generator) / case.dim**0.5
        self.inverse = torch.linalg.pinv(self.matrix)

    def simulate(self, theta):
        x = (theta / self.case.scale_theta) @ self.matrix
        return self.case.scale_y * (x + 0.3 * torch.randn_like(x)).reshape(len(theta), *self.shape)

    def observe(self, theta):
        return 1.2 * self.simulate(theta) + 0.5 * self.case.scale_y

    def mean(self, x):
        return self.case.scale_theta * ((x.flatten(1) / self.case.scale_y) @ self.inverse)

    def base(self):
        width = 0.5 * self.case.scale_theta

        def draw(x):
            mean = self.mean(x)
            return mean + width * torch.randn_like(mean)

        def log_prob(theta, x):
            return Normal(self.mean(x), width, validate_args=False).log_prob(theta).sum(1)

        return as_base_posterior(draw, self.prior, log_prob if self.case.density else None)


def damaged(value, kind, case):
    """The tensor with one thing wrong with it."""
    value = value.clone()
    if kind in WRONG_NUMBERS:
        if value.numel():
            value.view(-1)[value.numel() // 2] = float(kind)
        return value
    if kind in ("float16", "float64", "int64", "bool", "complex128"):
        return value.to(getattr(torch, kind))
    if kind in ("object", "str", "longdouble", ">f8"):
        return value.numpy().astype(kind)
    if kind == "reversed":
        return value.numpy()[::-1].copy()[::-1]
    if kind == "read-only":
        value = value.numpy().copy()
        value.flags.writeable = False
        return value
    if kind == "masked":
        mask = np.zeros(value.shape, bool)
        mask.reshape(-1)[:1] = True
        return np.ma.masked_array(value.numpy(), mask)
    if kind == "offset":  # beyond single precision, unless the numbers are large themselves
        return value.numpy().astype(np.float64) + 1e7
    if kind == "list":
        return value.tolist()
    if kind in ("constant", "dead") and len(value):
        value.view(len(value), -1)[:, 0] = value.view(len(value), -1)[0, 0].item()
    if kind == "same" and len(value):
        value = value[:1].expand_as(value).clone()
    if kind == "twice":
        value = value[torch.arange(len(value)) // 2]
    if kind == "low" and len(value):
        value.view(-1)[0] = {"box": -case.scale_theta, "mixed": -case.scale_theta}.get(case.prior, 0.0)
    if kind == "outside" and len(value):
        value.view(-1)[-1] = -1e3 * case.scale_theta
    factors = {"huge": 1e12, "tiny": 1e-12, "far": 30.0}
    value = value * factors.get(kind, 1.0)
    return {
        "turned": lambda: value.movedim(0, -1), "short": lambda: value[:-1], "flat": lambda: value.reshape(-1),
        "deep": lambda: value[None], "empty": lambda: value[:0],
    }.get(kind, lambda: value)()  # fmt: skip


@contextmanager
def within(seconds):
    """Stop what takes so many seconds of CPU, or ten times that while it waits: the machine may be busy."""

    def stop(*_):
        raise TimeoutError(f"longer than {seconds} s")

    timers = {signal.ITIMER_REAL: (signal.SIGALRM, 10 * seconds), signal.ITIMER_PROF: (signal.SIGPROF, seconds)}
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, limit) in timers.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def result_of(call):
    """The result, or None after an error in the library's three parts."""
    try:
        return call()
    except DOCUMENTED as error:
        text = str(error)
        assert text.startswith("Expected ") and ", got " in text and text.endswith("."), text
        assert len(text.split(". ")) > 1, text  # what to do
        return None


def assert_draws(draws, shape, prior):
    assert draws.shape == shape and draws.dtype == torch.float32
    assert bool(torch.isfinite(draws).all())
    assert not draws.numel() or bool(within_support(prior, draws.reshape(-1, shape[-1])).all())


def run(case):
    with within(60), warnings.catch_warnings():
        warnings.simplefilter("ignore", FMCPEWarning)
        warnings.simplefilter("error", RuntimeWarning)  # of a library below
        torch.manual_seed(case.seed)
        setting = Setting(case)
        prior = setting.prior
        theta = prior.sample((case.pairs,))
        y = setting.observe(theta)
        recipe = LIKELIHOOD if case.likelihood else LIGHT
        method = FMCPE(setting.base(), setting.simulate, recipe=recipe)
        given_theta, given_y = damaged(theta, case.theta, case), damaged(y, case.y, case)
        posterior = result_of(lambda: method.fit(given_theta, given_y, seed=0, show_progress_bars=False))
        if posterior is None:
            return "refused"
        assert abs(sum(posterior.weights.values()) - 1) < 1e-4
        many = setting.observe(prior.sample((case.observations,)))
        x, one = damaged(many, case.x, case), damaged(many[:1], case.x, case)
        held = prior.sample((12,))
        posterior.conformalize(held, setting.observe(held), num_samples=50)
        return "answered" if None not in ask(posterior, setting, one, x).values() else "fitted"


def ask(posterior, setting, one, many):
    """Every method for one observation and for many, each by itself: what was answered, None where it was refused."""
    case, prior, dim = setting.case, setting.prior, setting.case.dim
    quiet = {"seed": 0, "show_progress_bars": False}
    found = {
        "sample_batched": result_of(lambda: posterior.sample_batched((5,), x=many, **quiet)),
        "sample": result_of(lambda: posterior.sample((7,), x=one, **quiet)),
        "empty": result_of(lambda: posterior.sample((0,), x=one)),
        "check": result_of(lambda: posterior.check(many)),
    }
    for name, shape in (("sample_batched", (5, None, dim)), ("sample", (7, dim)), ("empty", (0, dim))):
        if found[name] is not None:
            assert_draws(found[name], tuple(found[name].shape[1] if n is None else n for n in shape), prior)
    if found["check"] is not None:
        for p in (
            found["check"].pairs,
            found["check"].conformal,
            found["check"].simulations,
            found["check"].prior_share,
        ):
            assert p.ndim == 1 and bool(((p >= 0) & (p <= 1)).all())
    found["interval"] = result_of(lambda: posterior.interval(0.8, x=many))
    if found["interval"] is not None:
        low, high = found["interval"].low, found["interval"].high
        assert not bool(low.isnan().any() | high.isnan().any()) and bool((low <= high).all())
    if not case.density and not case.likelihood:
        return found
    at = torch.cat([prior.sample((10,)), -1e3 * case.scale_theta * torch.ones(1, dim)])
    for name, theta in {"plain": at, "none": at[:0], "damaged": damaged(at, case.theta, case)}.items():
        density = result_of(lambda theta=theta: posterior.log_prob(theta, x=one))
        if density is not None:
            assert density.ndim == 1 and not bool(density.isnan().any()) and bool((density < torch.inf).all())
        if name != "damaged":
            found[name] = density
            assert density is None or density.shape == (len(theta),)
    found["map"] = result_of(lambda: posterior.map(x=one, num_iter=2, num_to_optimize=4, num_init_samples=8))
    if found["map"] is not None:
        assert_draws(found["map"], (1, dim), prior)
    return found


OPTIONS = {
    "deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate, Phase.shrink],
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}  # fmt: skip


@settings(max_examples=300, **OPTIONS)
@given(CASES)
def test_a_result_or_an_error_that_says_what_to_do(case):
    run(case)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_the_same_for_thousands_of_cases(part):
    @settings(max_examples=600, **{**OPTIONS, "derandomize": False})
    @given(CASES)
    def check(case):
        run(case)

    check()


def test_most_kinds_of_damage_are_reached_and_harmless_input_is_answered():
    plain = Case(2, "box", "vector", 1.0, 1.0, 24, 2, "none", "none", "none", True, False, 0)
    assert run(plain) == "answered"


@pytest.mark.parametrize("seed", range(2))
def test_pairs_in_another_unit_than_the_simulations_are_answered(seed):
    """Nineteen orders of magnitude: the uncorrected posterior's draws are so far that the squares of distances overflow."""
    assert (
        run(Case(2, "normal", "number", 1.0, 1e-12, 2, 1, "none", "offset", "none", False, False, seed)) == "answered"
    )

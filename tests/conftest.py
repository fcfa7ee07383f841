"""Shared problems and posteriors, each made once per session."""

import signal
import warnings
from dataclasses import replace

import pytest
import torch
from sbi.utils import BoxUniform
from torch import nn

import fmcpe
from fmcpe import FMCPE, Paper, Stack, baselines, candidates
from fmcpe.nn.training import Training

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a run in the background: tests of interrupts need one
    signal.signal(signal.SIGINT, signal.default_int_handler)

# small networks on few cores: threads cost more than they give, and they make runs of the suite side by side crawl
torch.set_num_threads(1)

PRIOR = BoxUniform(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]))
TINY = Paper(
    epochs=4, validate_every=1, steps=6, hidden=16, blocks=2, embedding_dim=8, summaries=True, solver="midpoint"
)


def simulate(theta):
    """Two parameters, three numbers; refuses anything but physical θ inside the prior."""
    if theta.shape[1] != 2 or not bool(PRIOR.support.check(theta).all()):
        raise AssertionError("the simulator was called outside the prior")
    x = torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)
    return x + 0.3 * torch.randn_like(x)


def observe(theta):
    """What really happens: gains and an offset that the simulator does not know."""
    return simulate(theta) * torch.tensor([1.3, 0.8, 1.0]) + torch.tensor([0.7, -0.5, 0.2])


@pytest.fixture(scope="session")
def base():
    """A base posterior on `simulate`, trained for a few seconds."""
    return fmcpe.train_npe(simulate, PRIOR, 4000, seed=0, max_num_epochs=8, show_progress_bars=False)


@pytest.fixture(scope="session")
def pairs():
    """Thirty calibration pairs."""
    torch.manual_seed(1)
    theta = PRIOR.sample((30,))
    return theta, observe(theta)


@pytest.fixture(scope="session")
def base_with_embedding():
    """The same with a network that summarises x in two numbers (and how rough it is): flows then work on these."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
    return fmcpe.train_npe(simulate, PRIOR, 4000, net, seed=0, max_num_epochs=8, show_progress_bars=False)


FLOWS = ("joint", "sequential", "x-only", "theta-only", "summary")
BASELINES = (
    *("npe", "dpe", "mf-npe", "rope", "rope-summary", "frisbi", "frisbi-summary"),
    *("rnpe", "rnpe-summary", "rsnl", "nnpe", "npe-rs", "j-npe"),
)
CANDIDATES = {
    "prior": candidates.Prior(),
    "residual_shift": candidates.ResidualShift(),
    "synthetic_likelihood": candidates.SyntheticLikelihood(),
    "joint_flow": candidates.JointFlow(steps=20),
    "fine_tuned": candidates.FineTuned(steps=20),
}
"""Each candidate that needs a fit of its own, at a small budget, as the only one of a stack."""
SMALL = Stack(
    [candidates.Uncorrected(), *CANDIDATES.values()],
    folds=2,
    repeats=1,
)
KINDS = (*FLOWS, "default", *CANDIDATES, *BASELINES)
SHORT = Training(max_num_epochs=8)
"""For baselines that train on simulations: as long as `base` is trained."""


@pytest.fixture(scope="session")
def posteriors(base, base_with_embedding, pairs):
    """Every kind of posterior in the library, by name, made when first asked for."""
    made = {}

    def method(kind):
        if kind in FLOWS:
            start = base_with_embedding if kind == "summary" else base
            return FMCPE(start, simulate, recipe=replace(TINY, stages="joint" if kind == "summary" else kind))
        if kind in CANDIDATES:
            start = base_with_embedding if kind in ("residual_shift", "fine_tuned") else base
            return FMCPE(start, simulate, recipe=replace(SMALL, candidates=(CANDIDATES[kind],)))
        return {
            "default": lambda: FMCPE(base, simulate, recipe=SMALL),
            "npe": lambda: baselines.NPE(base),
            "dpe": lambda: baselines.DPE(PRIOR),
            "mf-npe": lambda: baselines.MFNPE(base),
            "rope": lambda: baselines.RoPE(base, simulate, num_simulations=300),
            "rope-summary": lambda: baselines.RoPE(base_with_embedding, simulate, num_simulations=300),
            "frisbi": lambda: baselines.FRISBI(base, simulate, num_simulations=300),
            "frisbi-summary": lambda: baselines.FRISBI(base_with_embedding, simulate, num_simulations=300),
            "rnpe": lambda: baselines.RNPE(base, simulate, num_simulations=1000),
            "rnpe-summary": lambda: baselines.RNPE(base_with_embedding, simulate, num_simulations=1000),
            "rsnl": lambda: baselines.RSNL(base, simulate, num_simulations=2000),
            "nnpe": lambda: baselines.NNPE(simulate, PRIOR, 4000, training=SHORT),
            "npe-rs": lambda: baselines.NPERS(simulate, PRIOR, 4000, training=SHORT),
            "j-npe": lambda: baselines.JNPE(simulate, PRIOR, 4000, training=SHORT),
        }[kind]()

    def get(kind):
        if kind not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fmcpe.FMCPEWarning)
                made[kind] = method(kind).fit(*pairs, seed=0, show_progress_bars=False)
        return made[kind]

    return get


def with_pairs_of(problem, rows, other):
    """A problem with the pairs of some rows, and their simulations, taken from another."""
    names = [name for name in ("theta", "z", "y", "seen", "x", "x_mean") if getattr(problem, name) is not None]
    changed = {name: getattr(problem, name).index_copy(0, rows, getattr(other, name)[rows]) for name in names}
    return replace(problem, **changed)

"""How much of everything an experiment has: sizes, sets, simulations, epochs, draws."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmcpe.bench.units import SIMULATION_TRAINED, Evaluation, Options, options
from fmcpe.tasks import zoo

_PAPER, _PAPER_SBC = Evaluation(), Evaluation(test=1000, draws=500, reference=0, joint=False)
_QUICK = Evaluation(test=300, draws=60, reference_draws=1000)
_QUICKEST = replace(_QUICK, draws=20, reference=0)
_SMOKE = Evaluation(test=30, draws=20, reference=1, reference_draws=60)
_ZOO = Evaluation(test=500, draws=60, reference=2, reference_draws=500, joint=False)

ZOO_QUICK = (
    "zoo/linear-none", "zoo/linear-gain-offset", "zoo/oscillator-missing-physics", "zoo/sir-nuisance", "zoo/g-and-k-outliers",
    "zoo/heat-channels", "zoo/transit-correlated-noise", "zoo/enzyme-calibration-shift", "zoo/beam-gain-offset",
    "zoo/pharmacokinetics-heteroscedastic", "zoo/fitzhugh-nagumo-lag", "zoo/ornstein-uhlenbeck-missing-physics",
    "zoo/projectile-none", "zoo/projectile-missing-physics", "zoo/kepler-heavy-tails", "zoo/kepler-prior-shift",
    "zoo/sources-saturation", "zoo/circuit-noise-scale",
)  # fmt: skip
"""Nine problems of each half."""

ZOO_PAPER = ("zoo/linear-gain-offset", "zoo/heat-channels", "zoo/enzyme-calibration-shift", "zoo/oscillator-missing-physics",
             "zoo/pharmacokinetics-heteroscedastic", "zoo/projectile-missing-physics")  # fmt: skip
"""Problems on which the paper's recipe is run with ``--with-paper``: four of the development half, two of the other."""


@dataclass(frozen=True)
class Preset:
    """Budgets.

    Args:
        tasks: Tasks of the experiments that go over tasks.
        stage_tasks: Tasks of `ablation` and `frontier`.
        sbc_tasks: Tasks of `sbc`.
        sensitivity_tasks: Tasks of `sensitivity`.
        sizes: Numbers of calibration pairs.
        few_sizes: Those of `ablation` and `prior`.
        timed_sizes: Those of `timing`.
        speed_sizes: Those of `speed`.
        sets: Nested calibration sets.
        simulations: Simulations of a base posterior.
        own_simulations: Those of NNPE and J-NPE, which train a posterior of their own on them.
        side_simulations: Those of base posteriors that `independence` and `prior` alone need.
        epochs: Epochs of its training.
        evaluation: What is measured.
        extra: The same for what is in no other experiment than `ablation`, `independence` or `prior`.
        sbc: The same for `sbc`.
        timed: Observations answered against the clock.
        alphas: Of `independence`, with `most_pairs` pairs.
        most_pairs: See `alphas`.
        rates: Learning rates of `sensitivity`.
        clips: Clipping thresholds of `sensitivity`; None for no clipping.
        grid_pairs: Pairs of `sensitivity`.
        grid_epochs: Epochs of `sensitivity`.
        grid_seeds: Seeds of `sensitivity`.
        grid_test: Test pairs of `sensitivity`, with one draw for each.
        recipe: Fields of every recipe that are made smaller, for a look at whether everything runs.
        zoo: Problems of `zoo`.
        zoo_sizes: Its numbers of pairs.
        zoo_sets: Its calibration sets.
        zoo_simulations: Simulations of its base posteriors, and of NNPE and J-NPE.
        zoo_methods: Methods that are fitted on it.
        zoo_evaluation: What is measured on it.
    """

    tasks: tuple[str, ...] = ("gaussian", "pendulum", "wind-tunnel", "light-tunnel")
    stage_tasks: tuple[str, ...] = ("gaussian", "pendulum", "wind-tunnel", "light-tunnel")
    sbc_tasks: tuple[str, ...] = ("gaussian", "wind-tunnel")
    sensitivity_tasks: tuple[str, ...] = ("pendulum", "light-tunnel")
    sizes: tuple[int, ...] = (10, 50, 200, 1000)
    few_sizes: tuple[int, ...] = (10, 50, 200, 1000)
    timed_sizes: tuple[int, ...] = (10, 50, 200, 1000)
    speed_sizes: tuple[int, ...] = (10, 50, 200, 1000)
    sets: int = 5
    simulations: int = 50_000
    own_simulations: int = 50_000
    side_simulations: int = 50_000
    epochs: int = 20
    evaluation: Evaluation = _PAPER
    extra: Evaluation = _PAPER
    sbc: Evaluation = _PAPER_SBC
    timed: int = 5000
    alphas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0)
    most_pairs: int = 1000
    rates: tuple[float, ...] = (1e-4, 5e-4, 1e-3, 5e-3)
    clips: tuple[float | None, ...] = (0.5, 1.0, 5.0, None)
    grid_pairs: int = 200
    grid_epochs: int = 50
    grid_seeds: tuple[int, ...] = (33, 43, 53)
    grid_test: int = 3000
    recipe: Options = ()
    zoo: tuple[str, ...] = zoo.names()
    zoo_sizes: tuple[int, ...] = (10, 30, 100, 300)
    zoo_sets: int = 3
    zoo_simulations: int = 20_000
    zoo_methods: tuple[str, ...] = ("npe", "dpe", "mf-npe", "rope", "nnpe", "j-npe", "fmcpe", "reference")
    zoo_evaluation: Evaluation = _ZOO

    def simulations_of(self, method: str) -> int:
        """Simulations behind a method."""
        return self.own_simulations if method in SIMULATION_TRAINED else self.simulations


PRESETS = {
    "paper": Preset(),
    "full": Preset(),
    "quick": Preset(
        tasks=("gaussian", "pendulum"),
        stage_tasks=("gaussian", "pendulum"),
        sbc_tasks=("gaussian", "pendulum"),
        sensitivity_tasks=("pendulum",),
        few_sizes=(10, 200),
        timed_sizes=(200,),
        speed_sizes=(200, 1000),
        sets=3,
        own_simulations=10_000,
        side_simulations=20_000,
        evaluation=_QUICK,
        extra=_QUICKEST,
        sbc=_QUICK,
        grid_test=300,
        zoo=ZOO_QUICK,
        zoo_sets=2,
        zoo_simulations=10_000,
        zoo_methods=("npe", "dpe", "mf-npe", "rope", "nnpe", "fmcpe", "reference"),
    ),
    "smoke": Preset(
        stage_tasks=("gaussian", "pendulum"),
        sensitivity_tasks=("pendulum",),
        sizes=(10, 20),
        few_sizes=(10, 20),
        timed_sizes=(10, 20),
        speed_sizes=(10, 20),
        sets=1,
        simulations=300,
        own_simulations=300,
        side_simulations=300,
        epochs=2,
        evaluation=_SMOKE,
        extra=_SMOKE,
        sbc=_SMOKE,
        timed=50,
        alphas=(0.0, 5.0),
        most_pairs=20,
        rates=(1e-4, 1e-3),
        clips=(1.0, None),
        grid_pairs=20,
        grid_epochs=2,
        grid_seeds=(33, 43),
        grid_test=30,
        zoo=("zoo/linear-gain-offset", "zoo/projectile-none"),
        zoo_sizes=(10, 20),
        zoo_sets=1,
        zoo_simulations=300,
        zoo_methods=("npe", "dpe", "mf-npe", "fmcpe", "reference"),
        zoo_evaluation=replace(_ZOO, test=30, draws=20, reference=1, reference_draws=60),
        recipe=options(epochs=2, steps=3, hidden=16, blocks=1, embedding_dim=8, num_statistics=100, folds=2),
    ),
}

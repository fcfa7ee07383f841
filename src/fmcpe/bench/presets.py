"""Presets: budgets of the experiments (sizes, sets, simulations, epochs, draws)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmcpe.bench.units import SIMULATION_TRAINED, Evaluation, Options, options
from fmcpe.tasks import zoo

_PAPER, _PAPER_SBC = Evaluation(draws=50), Evaluation(test=1000, draws=500, reference=0, joint=False)
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
"""Problems of the paper's recipe with ``--with-paper``: four of the development half, two of the reporting half."""


@dataclass(frozen=True)
class Preset:
    """Budgets.

    Args:
        tasks: Tasks of the experiments without tasks of their own.
        stage_tasks: Tasks of `ablation` and `frontier`.
        sbc_tasks: Tasks of `sbc`.
        sensitivity_tasks: Tasks of `sensitivity`.
        sizes: Numbers of calibration pairs.
        few_sizes: Numbers of pairs of `ablation` and `prior`.
        timed_sizes: Numbers of pairs of `timing`.
        speed_sizes: Numbers of pairs of `speed`.
        sets: Number of nested calibration sets.
        simulations: Simulations of a base posterior.
        own_simulations: Simulations of NNPE, NPE-RS and J-NPE, which train their own posterior.
        side_simulations: Simulations of base posteriors that only `independence` and `prior` need.
        epochs: Training epochs of a base posterior.
        evaluation: Evaluation settings.
        extra: Evaluation settings of units that only `ablation`, `independence` and `prior` have.
        sbc: Evaluation settings of `sbc`.
        timed: Observations of the timed inference.
        alphas: Values of α of `independence`.
        most_pairs: Number of pairs of `independence`.
        rates: Learning rates of `sensitivity`.
        clips: Clipping thresholds of `sensitivity`; None for no clipping.
        grid_pairs: Number of pairs of `sensitivity`.
        grid_epochs: Epochs of `sensitivity`.
        grid_seeds: Seeds of `sensitivity`.
        grid_test: Test pairs of `sensitivity`, with one draw each.
        more: Baselines of `main`, `timing` and `frontier` beside those that they always have.
        recipe: Fields of every recipe to reduce, for a smoke test.
        zoo: Problems of `zoo`.
        zoo_sizes: Numbers of pairs of `zoo`.
        zoo_sets: Number of calibration sets of `zoo`.
        zoo_simulations: Simulations of base posteriors, NNPE, NPE-RS and J-NPE in `zoo`.
        zoo_methods: Methods of `zoo`.
        zoo_evaluation: Evaluation settings of `zoo`.
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
    more: tuple[str, ...] = ()
    recipe: Options = ()
    zoo: tuple[str, ...] = zoo.names()
    zoo_sizes: tuple[int, ...] = (10, 30, 100, 300)
    zoo_sets: int = 3
    zoo_simulations: int = 20_000
    zoo_methods: tuple[str, ...] = ("npe", "dpe", "mf-npe", "rope", "nnpe", "j-npe", "fmcpe", "reference")
    zoo_evaluation: Evaluation = _ZOO

    def simulations_of(self, method: str) -> int:
        """Number of simulations of a method."""
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

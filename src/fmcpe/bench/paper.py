"""The numbers in the paper's text and tables, for comparison with ours. Its figures give no numbers."""

from __future__ import annotations

SPACE = "not stated by the paper; its training uses z-scored data and the logit of θ for uniform priors"

SCALE = (
    "Its joint W2 of a few thousandths cannot be the distance between two samples of standardised points, for which even the "
    "exact posterior has a floor near 1 at 2000 pairs (see the reference in our tables). Compare how W2 and MMD² change with "
    "the settings, not their values."
)

BUDGETS = {
    "main": "10, 50, 200 and 1000 pairs, 5 calibration sets, 2000 test pairs; epochs not stated",
    "posterior-level": "10, 50, 200 and 1000 pairs, 3 observations with 5000 draws each, 3-fold C2ST; epochs not stated",
    "sbc": "10, 50, 200 and 1000 pairs, one calibration set, 1000 test pairs with 500 draws each; epochs not stated",
    "ablation": "10, 50, 200 and 1000 pairs, 5 calibration sets, 2000 test pairs; epochs not stated",
    "independence": "1000 pairs, 3 seeds, 2000 test pairs; epochs not stated",
    "prior": "10, 50, 200 and 1000 pairs, 3 calibration sets, 2000 test pairs; epochs not stated",
    "timing": "10, 50, 200 and 1000 pairs, 5000 observations at inference; epochs not stated",
    "sensitivity": "200 pairs, 3 seeds, 3000 test pairs with one draw each, 50 epochs",
}
"""Budgets of the paper's experiments as stated there: those of its experimental set-up unless the experiment says otherwise."""

SIMULATIONS = 50_000

SENSITIVITY = 200, 50, 3000, 50_000
"""Pairs, epochs, test pairs and simulations."""

INDEPENDENCE = {  # table "Flow-θ ablation", N_cal = 1000: α -> (full, T_X only), each (jC2ST, std, jMMD, std)
    0.0: ((0.576, 0.006, 0.00040, 0.00001), (0.613, 0.003, 0.00043, 0.00001)),
    0.5: ((0.630, 0.015, 0.00045, 0.00000), (0.673, 0.004, 0.00051, 0.00001)),
    1.0: ((0.691, 0.016, 0.00030, 0.00003), (0.777, 0.003, 0.00048, 0.00001)),
    2.0: ((0.768, 0.041, 0.00022, 0.00003), (0.864, 0.004, 0.00045, 0.00001)),
    5.0: ((0.545, 0.051, 0.00033, 0.00017), (0.709, 0.168, 0.00052, 0.00008)),
}

SIZES = (10, 50, 200, 1000)
"""Numbers of pairs in the timing tables."""

METHODS = {"dpe": "NPE", "fmcpe-paper": "Ours", "mf-npe": "MF-NPE", "rope": "RoPE"}
"""Our names of the paper's methods. Its NPE is trained on the calibration pairs alone, like our `dpe`."""

TRAINING = {  # seconds on one GPU (RTX 3060): method -> task -> by SIZES; None where the paper has a dash
    "dpe": {
        "gaussian": (5.51, 6.07, 13.11, 37.32), "light-tunnel": (0.79, 0.71, 4.11, 15.10),
        "pendulum": (0.63, 0.26, 2.21, 12.32), "wind-tunnel": (0.58, 0.14, 0.19, 5.94),
    },
    "fmcpe-paper": {
        "gaussian": (28.35, 63.29, 70.24, 141.96), "light-tunnel": (37.12, 70.97, 136.18, 306.55),
        "pendulum": (52.82, 80.74, 163.91, 333.70), "wind-tunnel": (94.73, 126.74, 127.65, 235.78),
    },
    "mf-npe": {
        "gaussian": (3.48, 6.33, 10.35, 22.33), "light-tunnel": (0.55, 1.76, 4.38, 26.76),
        "pendulum": (0.72, 0.76, 2.86, 8.45), "wind-tunnel": (1.53, 1.92, 3.02, 10.99),
    },
    "rope": {
        "gaussian": (None, None, None, None), "light-tunnel": (5.40, 6.53, 15.93, 61.57),
        "pendulum": (7.81, 7.95, 11.87, 38.09), "wind-tunnel": (7.10, 7.67, 11.73, 38.47),
    },
}  # fmt: skip

INFERENCE = {  # seconds for 5000 observations, one draw each
    "dpe": {
        "gaussian": (0.09, 0.01, 0.01, 0.01), "light-tunnel": (0.67, 0.63, 0.64, 0.64),
        "pendulum": (0.12, 0.07, 0.07, 0.06), "wind-tunnel": (0.02, 0.01, 0.01, 0.01),
    },
    "fmcpe-paper": {
        "gaussian": (0.64, 0.73, 0.55, 0.40), "light-tunnel": (10.95, 10.81, 10.83, 11.03),
        "pendulum": (2.20, 2.22, 2.21, 2.20), "wind-tunnel": (0.38, 0.41, 0.43, 0.43),
    },
    "mf-npe": {
        "gaussian": (0.01, 0.01, 0.01, 0.01), "light-tunnel": (0.69, 0.70, 0.58, 0.65),
        "pendulum": (0.06, 0.06, 0.08, 0.08), "wind-tunnel": (0.01, 0.01, 0.01, 0.01),
    },
    "rope": {
        "gaussian": (110.31, 106.94, 101.60, 100.11), "light-tunnel": (222.51, 218.01, 224.80, 226.29),
        "pendulum": (446.48, 93.07, 87.91, 88.23), "wind-tunnel": (54.80, 54.32, 56.14, 59.13),
    },
}  # fmt: skip

BREAKDOWN = {  # seconds of training, by SIZES
    "gaussian": {
        "gradient steps": (0.18, 0.68, 0.84, 1.67), "base draws": (8.96, 19.84, 21.70, 43.54),
        "x-transport": (19.20, 42.76, 47.70, 96.75),
    },
    "light-tunnel": {
        "gradient steps": (0.68, 1.43, 2.36, 2.81), "base draws": (9.82, 18.24, 33.68, 58.25),
        "x-transport": (26.62, 51.29, 100.14, 245.49),
    },
    "pendulum": {
        "gradient steps": (0.94, 1.86, 3.74, 5.97), "base draws": (11.04, 16.75, 34.45, 70.04),
        "x-transport": (40.83, 62.12, 125.72, 257.69),
    },
    "wind-tunnel": {
        "gradient steps": (1.10, 1.68, 1.84, 2.90), "base draws": (21.03, 27.93, 27.91, 52.04),
        "x-transport": (72.60, 97.13, 97.90, 180.83),
    },
}  # fmt: skip

RATES, CLIPS = (1e-4, 5e-4, 1e-3, 5e-3), (0.5, 1.0, 5.0, None)

SENSITIVITY_TABLE = {  # N_cal = 200, 3 seeds: task -> by RATES -> by CLIPS -> (jW2, std, jMMD, std), in 1e-3 and 1e-4
    "pendulum": (
        ((6.43, 0.14, 7.32, 0.07), (6.45, 0.15, 7.37, 0.07), (6.38, 0.16, 7.36, 0.11), (6.39, 0.14, 7.35, 0.06)),
        ((5.80, 0.39, 7.28, 0.03), (5.71, 0.41, 7.27, 0.04), (5.85, 0.37, 7.28, 0.04), (5.82, 0.37, 7.28, 0.10)),
        ((2.66, 0.41, 6.97, 0.11), (2.60, 0.52, 6.93, 0.16), (2.71, 0.33, 6.95, 0.18), (2.75, 0.30, 7.02, 0.16)),
        ((4.53, 1.63, 7.34, 0.09), (6.44, 0.58, 7.44, 0.13), (4.76, 1.72, 7.37, 0.09), (3.85, 1.49, 7.40, 0.08)),
    ),
    "light-tunnel": (
        (
            (5.29, 0.43, 6.466, 0.004),
            (5.26, 0.45, 6.466, 0.006),
            (5.21, 0.54, 6.466, 0.006),
            (5.30, 0.50, 6.467, 0.007),
        ),
        (
            (5.01, 0.65, 6.474, 0.004),
            (5.04, 0.60, 6.476, 0.004),
            (4.92, 0.56, 6.474, 0.005),
            (4.96, 0.67, 6.475, 0.005),
        ),
        (
            (4.42, 0.15, 6.472, 0.004),
            (4.38, 0.11, 6.472, 0.003),
            (4.46, 0.12, 6.472, 0.004),
            (4.40, 0.20, 6.471, 0.004),
        ),
        (
            (4.06, 0.98, 6.471, 0.009),
            (4.03, 0.98, 6.471, 0.008),
            (4.51, 0.62, 6.467, 0.012),
            (3.78, 1.18, 6.468, 0.009),
        ),
    ),
}

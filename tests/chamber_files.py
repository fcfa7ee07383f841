"""Small data sets in the layout of the chambers' published ones."""

import numpy as np
from PIL import Image

from fmcpe.tasks.chambers import IMAGES, IMPULSES

NUM_RUNS, NUM_IMAGES = 30, 20


def write_impulses(
    root,
    columns=("hatch", "pressure_downwind"),
    rows=None,
    edit=lambda lines: lines,
    first_column="counter",
    runs=NUM_RUNS,
):
    """A csv file of impulses; returns its path, and the hatch positions and pressures, (runs, 50) each."""
    rng = np.random.default_rng(0)
    hatch = np.repeat(rng.integers(0, 451, runs) / 10, 50)
    hatch[:50], hatch[50:100] = 0.0, 45.05  # the stepper motor may pass a bound by less than a step
    values = {"counter": np.arange(len(hatch)), "hatch": hatch, "load_in": 0 * hatch}
    values["pressure_downwind"] = 96_000 + rng.normal(size=len(hatch)).round(2) + np.arange(len(hatch)) % 50
    names = sorted(["counter", "load_in", *columns], key=lambda name: name != first_column)
    lines = [",".join(names)] + [",".join(str(values[n][i]) for n in names) for i in range(rows or len(hatch))]
    folder = root / IMPULSES[0]
    folder.mkdir(parents=True)
    path = folder / f"{IMPULSES[1]}.csv"
    path.write_text("\n".join(edit(lines)) + "\n")
    return path, hatch.reshape(-1, 50), values["pressure_downwind"].reshape(-1, 50)


def write_images(root, size=64, columns=("red", "green", "blue", "pol_1", "pol_2", "image_file")):
    """A folder of images with its csv file; returns the folder, the columns, and the pixels."""
    rng = np.random.default_rng(0)
    folder = root / IMAGES[0] / IMAGES[1]
    (folder / "images_64").mkdir(parents=True)
    values = {name: rng.integers(0, 256, NUM_IMAGES) for name in ("red", "green", "blue")}
    values |= {name: rng.integers(-1800, 1801, NUM_IMAGES) / 10 for name in ("pol_1", "pol_2")}
    values["pol_1"][0] = values["pol_2"][0]
    values["image_file"] = np.array([f"im_{i:02d}.png" for i in range(NUM_IMAGES)])
    pixels = rng.integers(0, 256, (NUM_IMAGES, size, size, 3), dtype=np.uint8)
    for name, image in zip(values["image_file"], pixels, strict=True):
        Image.fromarray(image).save(folder / "images_64" / name)
    lines = [",".join(columns)] + [",".join(str(values[n][i]) for n in columns) for i in range(NUM_IMAGES)]
    (folder / f"{IMAGES[1]}.csv").write_text("\n".join(lines) + "\n")
    return folder, values, pixels

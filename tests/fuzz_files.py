"""Mutations of saved files, each loaded in this process: `python fuzz_files.py NUMBER SEED FILE...` prints what came of them.

Two thirds are of bytes: damage. A third are of the manifest or the tensors, with the checksum computed again: an attack.
"""

import copy
import json
import random
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import fmcpe
from fmcpe.serialization.container import read, to_bytes

Y = torch.tensor([1.0, 0.5, 1.2])
VALUES = [
    0, -1, 1, 7, 10**5, 10**8, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "os.system", None, True, [], {},
    [10**8], [1] * 50, [[[[]]]], {"class": "Mixture", "members": []},
]  # fmt: skip


def damaged(content, rng):
    """Bytes with a flip, a gap, an insertion, a cut, a block of zeros or another header."""
    data, kind = bytearray(content), rng.randrange(7)
    # half of the places are in the header, which is where the structure is
    place = rng.randrange(min(len(data), 8 + int.from_bytes(data[:8], "little")) if rng.random() < 0.5 else len(data))
    if kind <= 1:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[place : place + rng.randrange(1, 100)]
    elif kind == 3:
        data[place:place] = rng.randbytes(rng.randrange(1, 100))
    elif kind == 4:
        del data[place:]
    elif kind == 5:
        data[place : place + 512] = bytes(len(data[place : place + 512]))
    else:
        data[:8] = rng.choice([0, 1, 2**62, len(data), rng.randrange(2**20)]).to_bytes(8, "little")
    return bytes(data)


def places(value, found=None):
    """(container, key) of everything in a JSON document."""
    found = [] if found is None else found
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(each, dict | list):
            places(each, found)
    return found


def edited(manifest, tensors, rng):
    """Another manifest, or other tensors, with a right checksum."""
    manifest, tensors = copy.deepcopy(manifest), dict(tensors)
    kind = rng.randrange(8)
    if kind <= 4:
        part = rng.choice([key for key in manifest if key not in ("format", "versions")])
        container, key = rng.choice([(manifest, part), *places({part: manifest[part]})])
        number = type(container[key]) is int and rng.random() < 0.7
        container[key] = (
            rng.choice([v for v in VALUES if type(v) is int]) if number else copy.deepcopy(rng.choice(VALUES))
        )
    elif kind == 5:
        container, key = rng.choice(places(manifest))
        del container[key]
    else:
        name = rng.choice(sorted(tensors))
        value = tensors.pop(name)
        other = rng.choice([None, value.flatten(), value[None], value.double(), value.to(torch.uint8), value * torch.nan,
                            torch.zeros(0), torch.zeros(1000, 1000)])  # fmt: skip
        if other is not None:
            tensors[name if rng.random() < 0.8 else name + "x"] = other.contiguous().clone()
    return to_bytes(manifest, tensors)


def main(number, seed, files):
    warnings.simplefilter("ignore")
    rng, outcomes, bad, slowest = random.Random(seed), {}, [], 0.0
    known = []
    for file in files:
        expected = fmcpe.load(file).sample((3,), x=Y, seed=0)
        known.append((Path(file).read_bytes(), *read(Path(file)), expected))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.fmcpe"
        for i in range(number):
            content, manifest, tensors, expected = rng.choice(known)
            attack = i % 3 == 0
            path.write_bytes(edited(manifest, tensors, rng) if attack else damaged(content, rng))
            started = time.perf_counter()
            try:
                loaded, outcome = fmcpe.load(path), "loaded"
            except fmcpe.FileError:
                loaded, outcome = None, "FileError"
            except BaseException as error:
                loaded, outcome = None, type(error).__name__
                bad.append(f"{i}: {error!r}"[:300])
            slowest = max(slowest, time.perf_counter() - started)
            if loaded is not None and not attack and not torch.equal(loaded.sample((3,), x=Y, seed=0), expected):
                bad.append(f"{i}: a damaged file gave other draws")
            key = ("attack " if attack else "damage ") + outcome
            outcomes[key] = outcomes.get(key, 0) + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "outcomes": outcomes,
        "bad": bad,
        "slowest": slowest,
        "grown_mb": (peak - before) / 1e3,
        "peak_mb": peak / 1e3,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))

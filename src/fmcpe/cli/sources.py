"""Simulators, posteriors and models that a command is pointed at."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fmcpe._errors import FMCPEWarning
from fmcpe.cli.printing import say

if TYPE_CHECKING:
    from fmcpe.posterior import CorrectedPosterior


def find_simulator(where: str) -> Callable[..., Any]:
    """The function of ``FILE.py:FUNCTION``, or of ``package.module:FUNCTION``. Importing the file runs it."""
    place, separator, name = where.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(f"Expected --simulator FILE.py:FUNCTION, got {where!r}. Try --simulator model.py:simulate.")
    module = _module(place)
    found = getattr(module, name, None)
    if not callable(found):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        own = [n for n in functions if getattr(getattr(module, n), "__module__", None) == module.__name__]
        raise ValueError(
            f"Expected a function {name!r} in {place}, got none; it has {', '.join(own) or 'no functions'}. Write def "
            f"{name}(theta): with θ of shape (N, p), and return data of shape (N, ...)."
        )
    return found


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"Expected a Python file or an installed module, got {place!r} ({error}). Try --simulator model.py:simulate."
            ) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a Python file with the simulator, got {place}, which does not exist. Check the path."
        )
    name = f"fmcpe_simulator_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:  # a script: it ran, or read the options of this command as its own
        raise ValueError(
            f"Expected {place} to define the simulator when it is imported, got SystemExit: {error}. Put what it does as a "
            'script below: if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise ValueError(
            f"Expected {place} to run, got {type(error).__name__}: {error}. Try: python {place}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def add_posterior_options(parser: argparse.ArgumentParser) -> None:
    """The options of a base posterior from elsewhere."""
    parser.add_argument("--posterior", type=Path, metavar="FILE", help="a pickled sbi posterior; needs --trust-pickle")
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="load the pickle of --posterior, which can run any code: only for files that you made, or whose author you trust",
    )


def read_posterior(path: Path | None, trusted: bool) -> Any:
    """A pickled sbi posterior, if the user says that its code may run; None if there is none."""
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"Expected a pickled sbi posterior, got {path}, which does not exist. Check the path.")
    if not trusted:
        raise ValueError(
            f"Expected --trust-pickle with --posterior {path}, got none. Loading a pickle can run any code that its author put "
            "there: add --trust-pickle if you made the file, or trust who did."
        )
    found = _unpickled(path)
    from sbi.inference.posteriors.base_posterior import NeuralPosterior

    if not isinstance(found, NeuralPosterior) and not callable(found):
        raise ValueError(
            f"Expected a pickled sbi posterior in {path}, got a {type(found).__name__}. Write it with "
            "torch.save(inference.build_posterior(), path)."
        )
    return found


def _unpickled(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=False)  # reads plain pickles, too
    except Exception as first:
        import pickle

        try:
            with path.open("rb") as file:
                return pickle.load(file)
        except Exception as error:
            raise ValueError(
                f"Expected a pickled sbi posterior, got {path} ({type(error).__name__}: {error}; as a file of torch: {first}). "
                "Write it with torch.save(posterior, path), under the same versions of sbi and torch."
            ) from error


def read_model(options: argparse.Namespace) -> CorrectedPosterior:
    """The posterior of ``fmcpe fit --out``."""
    from fmcpe import load

    base = read_posterior(options.posterior, options.trust_pickle)
    try:
        return load(options.model, posterior=base)
    except ValueError as error:
        if base is None and "fmcpe.load(" in str(error):
            raise ValueError(
                f"Expected {options.model} to hold its base posterior, got a file without: it was fitted with --posterior. Add "
                "the same --posterior FILE --trust-pickle."
            ) from error
        raise


@contextlib.contextmanager
def notes() -> Iterator[list[str]]:
    """Collects what the library warns of, without the lines of code; other warnings are shown as ever."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FMCPEWarning)
        yield found
    for each in caught:
        if issubclass(each.category, FMCPEWarning):
            found.append(str(each.message))
        elif not issubclass(each.category, DeprecationWarning | UserWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def say_notes(found: list[str], known: Sequence[str] = ()) -> None:
    """Print notes that were not printed before."""
    for text in dict.fromkeys(found):
        if text not in known:
            say(f"Note: {text}")

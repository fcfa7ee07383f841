"""A second device without hardware: tensors that say they are on ``meta``, hold numbers, and never mix with the CPU's.

`Elsewhere` is a mode of torch's dispatcher. Inside it, ``device="meta"`` makes a tensor that carries its numbers along; an
operation on such a tensor and one of the CPU fails, as it does on a GPU (which takes only
single numbers and indices from the CPU). So whatever the library creates on a fixed device is found.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

DEVICE = torch.device("meta")
_TAKES_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPIES = {"_to_copy", "copy_"}


class Remote(torch.Tensor):
    """A tensor of the other device; `numbers` are what it holds."""

    is_meta = False  # only its device is called so: it has numbers

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), storage_offset=numbers.storage_offset(), dtype=numbers.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.numbers = numbers
        return made

    def __repr__(self):
        return f"Remote({self.numbers!r})"

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return _run(function, arguments, options or {})


def _run(function, arguments, options):
    name = function.overloadpacket.__name__
    flat = [each for each in tree_flatten((arguments, options))[0] if isinstance(each, torch.Tensor)]
    remote = any(isinstance(each, Remote) for each in flat)
    asked = options.get("device")
    if remote and name not in _COPIES:
        others = [arguments[0]] if name in _TAKES_INDICES else flat
        local = [
            each for each in others if isinstance(each, torch.Tensor) and not isinstance(each, Remote) and each.ndim
        ]
        if local:
            raise RuntimeError(f"{function}: a tensor {tuple(local[0].shape)} of the CPU meets one of another device")
    if asked is not None:
        options = options | {"device": torch.device("cpu")}
    inside = tree_map_only(Remote, lambda each: each.numbers, (arguments, options))
    out = function(*inside[0], **inside[1])
    to_remote = (torch.device(asked) == DEVICE) if asked is not None else remote
    if out is None or name == "_local_scalar_dense" or not to_remote:
        return out
    if torch.Tag.inplace_view in function.tags:  # such as squeeze_: the shape that is shown changes, too
        with no_dispatch():
            function(*arguments, **options)
    if name.endswith("_") and not name.endswith("__"):
        return arguments[0]  # in place
    if options.get("out") is not None:
        return options["out"]
    return tree_map(lambda each: Remote(each) if isinstance(each, torch.Tensor) else each, out)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return _run(function, arguments, options or {})


class _Functions(TorchFunctionMode):
    """``torch.tensor`` on ``meta`` drops its numbers before the dispatcher sees them: they are made here, then moved."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        asked = options.get("device")
        if function in (torch.tensor, torch.as_tensor) and asked is not None and torch.device(asked) == DEVICE:
            return function(*arguments, **options | {"device": "cpu"}).to(DEVICE)
        if function is torch.Tensor.new_tensor and isinstance(arguments[0], Remote):
            dtype = options.get("dtype", arguments[0].dtype)
            return torch.tensor(*arguments[1:], dtype=dtype).to(asked or DEVICE)
        if function is torch.Tensor.tolist and isinstance(arguments[0], Remote):
            return arguments[0].numbers.tolist()
        return function(*arguments, **options)


@contextlib.contextmanager
def elsewhere():
    """Inside, ``meta`` is a device that computes."""
    with _Functions(), _Dispatch():
        yield DEVICE

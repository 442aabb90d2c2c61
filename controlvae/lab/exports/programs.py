"""Programs of a network as files of `torch.export` and of ONNX, verified after they are written."""

import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram

from controlvae.errors import RunError, UserError
from controlvae.lab.exports.parts import Network

_TOLERANCE = 1e-4  # relative to values above 1, absolute below
_TRACED_BATCH = 2
_VERIFIED_BATCHES = (1, 5)  # other sizes than the traced one
_MAX_SINGLE_FILE = 1 << 30  # bytes of an ONNX file with its weights inside: its format ends at 2 GB
_NOISY_LOGGERS = ("torch", "torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes")

RunProgram = Callable[[Sequence[Tensor]], list[Tensor]]


def trace(network: Network) -> ExportedProgram:
    """Return the program of a network, for batches of any size.

    It is traced with zeros, because torch saves the traced inputs, and examples may be private.

    Raises:
        UserError: If torch cannot trace the network.
    """
    try:
        program = _export(network, network.module)
    except Exception as error:
        raise UserError(
            f"torch.export cannot export the {network.name} for batches of any size: "
            f"{_shorten(error)}"
        ) from None
    return _without_unused_weights(network, program)


def write_torch(network: Network, program: ExportedProgram, path: Path) -> float:
    """Write a program for `torch.export.load`. Return the largest difference of its outputs.

    Args:
        network: Network that was traced.
        program: Its program.
        path: File to write, which ends with `.pt2`.

    Raises:
        RunError: If the program that was written computes something else.
    """
    with _quiet():
        torch.export.save(program, path)
        loaded = torch.export.load(path).module()

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            found = loaded(*inputs)
        return list(found) if isinstance(found, tuple) else [found]

    return _verify(network, path, run)


def write_onnx(network: Network, program: ExportedProgram, path: Path) -> float:
    """Write a program as ONNX. Return the largest difference of its outputs in onnxruntime.

    Args:
        network: Network that was traced.
        program: Its program.
        path: File to write.

    Raises:
        UserError: If ONNX has no equivalent of an operation.
        RunError: If the program that was written computes something else.
    """
    import onnxruntime

    weights = sum(value.nbytes for value in program.state_dict.values())
    inputs, outputs = list(network.inputs), list(network.outputs)
    try:
        with _quiet():
            torch.onnx.export(
                program,
                f=path,
                dynamo=True,
                input_names=inputs,
                output_names=outputs,
                external_data=weights > _MAX_SINGLE_FILE,
                verbose=False,
            )
    except Exception as error:
        raise UserError(f"the {network.name} has no ONNX program: {_shorten(error)}") from None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(values: Sequence[Tensor]) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in zip(inputs, values, strict=True)}
        return [torch.from_numpy(array) for array in session.run(outputs, arrays)]

    return _verify(network, path, run)


def require_onnx() -> None:
    """Raise UserError if a package that writes or verifies ONNX is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"format onnx needs {name}: pip install 'controlvae[onnx]'")


def _export(network: Network, module: nn.Module) -> ExportedProgram:
    zeros = tuple(torch.zeros_like(value) for value in network.first(_TRACED_BATCH))
    batch = Dim("batch", min=1)
    with _quiet(), _without_validation(), torch.no_grad():
        return torch.export.export(module, zeros, dynamic_shapes=tuple({0: batch} for _ in zeros))


def _without_unused_weights(network: Network, program: ExportedProgram) -> ExportedProgram:
    """Return the program without weights that it does not use, such as the other network's."""
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    unused = [
        spec.target
        for spec in program.graph_signature.input_specs
        if spec.target is not None and spec.arg.name not in used
    ]
    if not unused:
        return program
    module = copy.deepcopy(network.module)
    for name in unused:
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, None)
    try:
        return _export(network, module)
    except Exception:  # the model's own code looks at a weight without computing with it
        return program


def _verify(network: Network, path: Path, run: RunProgram) -> float:
    """Return the largest difference between a written program and its network."""
    differences = []
    for count in _VERIFIED_BATCHES:
        expected, found = network.run(count), run(network.first(count))
        for name, right, value in zip(network.outputs, expected, found, strict=True):
            if value.shape != right.shape:
                raise RunError(
                    f"{path.name} returns {name} of shape {tuple(value.shape)}, "
                    f"but the model returns {tuple(right.shape)}"
                )
            scale = right.abs().clamp(min=1)
            differences.append(((value - right).abs() / scale).max())
    largest = float(torch.stack(differences).max())  # NaN if one is
    if not largest <= _TOLERANCE:
        raise RunError(
            f"{path.name} differs from the model by {largest:.2g}, more than {_TOLERANCE:g}; "
            "nothing was exported"
        )
    return largest


def _shorten(error: Exception) -> str:
    """Return the beginning of an error of torch's exporters in one line."""
    text = str(error).replace('For more information, run with TORCH_LOGS="+dynamic".', "")
    return " ".join(text.split())[:200] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporters print: notices about missing packages, and graphs that failed."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _without_validation() -> Iterator[None]:
    """Let distributions accept any values: their checks depend on data, which a trace has not."""
    validate = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validate)

"""Any optimiser and scheduler of torch, with the interface of the built-in Adam."""

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from controlvae.errors import UserError
from controlvae.lab.custom.failures import summarise
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.ranks.sharding import is_sharded, load_whole_state, shard_like

MakeOptimiser = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]
_SETTINGS = "settings"  # non-tensor state, as JSON in bytes


class TorchOptimiser:
    """A module and the torch optimiser that trains it.

    Args:
        module: Network to train, on its device.
        make: Optimiser class, or function from parameters to an optimiser.
        rate: Learning rate that a class is called with. None leaves it to the class.
        make_scheduler: Function from the optimiser to a learning-rate scheduler, or None.
        clip: Largest norm of the gradient over all weights, or None.

    Raises:
        UserError: If the functions return something else.
    """

    def __init__(
        self,
        module: nn.Module,
        make: MakeOptimiser,
        rate: float | None = None,
        make_scheduler: MakeScheduler | None = None,
        clip: float | None = None,
    ) -> None:
        self.module, self.clip = module, clip
        self.names = {id(value): name for name, value in module.named_parameters()}
        self.device = next(module.parameters()).device
        self.optimiser = _make_optimiser(module, make, rate, self.device)
        if self.device.type == "cuda":
            _make_capturable(self.optimiser, self.device)
        self.scheduler = None if make_scheduler is None else _make_scheduler(make_scheduler, self)
        self.steps = 0

    @property
    def capturable(self) -> bool:
        """True if a CUDA graph may contain a step."""
        return all(group.get("capturable", False) for group in self.optimiser.param_groups)

    def set_rate(self, step: int) -> None:
        """Advance the scheduler to a step; steps count from zero."""
        while self.scheduler is not None and self.steps < step:
            try:
                self.scheduler.step()
            except Exception as error:
                raise UserError(
                    f"scheduler {type(self.scheduler).__name__} failed at step {step:,}: "
                    f"{summarise(error)}; it must reach as far as steps"
                ) from error
            self.steps += 1
        self.steps = step

    def backward_and_step(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`, clip them if set, and take one step."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        self.optimiser.step()

    def snapshot(self) -> dict[str, Tensor]:
        """Return the module's state and the optimiser's, by name, without copying them."""
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        numbers: dict[str, dict[str, Any]] = {}
        for parameter, state in self.optimiser.state.items():
            name = self.names.get(id(parameter), "")
            for kind, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser.{kind}.{name}"] = value
                else:
                    numbers.setdefault(name, {})[kind] = value
        groups = [_plain_settings(group) for group in self.optimiser.param_groups]
        scheduler = {} if self.scheduler is None else _plain(self.scheduler.state_dict())
        text = json.dumps({"numbers": numbers, "groups": groups, "scheduler": scheduler})
        tensors[f"optimiser.{_SETTINGS}"] = torch.frombuffer(
            bytearray(text.encode()), dtype=torch.uint8
        )
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a snapshot."""
        load_whole_state(self.module, strip_prefix(tensors, "model."))
        saved = strip_prefix(tensors, "optimiser.")
        settings = json.loads(bytes(saved.pop(_SETTINGS).tolist()).decode())
        states: dict[str, dict[str, Any]] = {
            name: dict(entries) for name, entries in settings["numbers"].items()
        }
        for path, value in saved.items():
            kind, _, name = path.partition(".")
            states.setdefault(name, {})[kind] = value.clone()
        current = self.optimiser.state_dict()
        order = [p for group in self.optimiser.param_groups for p in group["params"]]
        current["state"] = {
            number: _shard_state(states[self.names[id(parameter)]], parameter)
            for number, parameter in enumerate(order)
            if self.names[id(parameter)] in states
        }
        for group, values in zip(current["param_groups"], settings["groups"], strict=True):
            group.update({k: v for k, v in values.items() if k in group})
        self.optimiser.load_state_dict(current)
        if self.device.type == "cuda":
            _make_capturable(self.optimiser, self.device)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(settings["scheduler"])
            self.steps = int(settings["scheduler"].get("last_epoch", 0))


def name_of(function: Any) -> str:
    """Return the name of an optimiser class or function, such as `torch.optim.AdamW`."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", "") or ""
    if module.startswith("torch.optim"):
        return f"torch.optim.{name}"
    return name if module in ("__main__", "") else f"{module}.{name}"


def _make_optimiser(
    module: nn.Module, make: MakeOptimiser, rate: float | None, device: torch.device
) -> Optimizer:
    options: dict[str, Any] = {}
    if inspect.isclass(make):
        known = inspect.signature(make).parameters
        if rate is not None and "lr" in known:
            options["lr"] = rate
        sharded = any(is_sharded(parameter) for parameter in module.parameters())
        if "fused" in known and device.type in ("cpu", "cuda") and not sharded:
            options["fused"] = True
        if "capturable" in known and device.type == "cuda":
            options["capturable"] = True
    trained = [p for p in module.parameters() if p.requires_grad]
    try:
        optimiser = make(trained, **options)
    except Exception as error:
        options.pop("fused", None)
        try:
            optimiser = make(trained, **options)
        except Exception:
            raise UserError(
                f"optimiser={name_of(make)} failed: {summarise(error)}; pass a function such as "
                "lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
            ) from error
    if not isinstance(optimiser, Optimizer):
        raise UserError(
            "optimiser must be a torch.optim class, or a function from parameters to an "
            f"optimiser; {name_of(make)} returned a {type(optimiser).__name__}"
        )
    closure = inspect.signature(optimiser.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"optimiser={name_of(make)} evaluates the loss several times in a step, which a "
            "controlled weight does not allow; use e.g. torch.optim.AdamW"
        )
    inside = {id(p) for p in module.parameters()}
    if any(id(p) not in inside for group in optimiser.param_groups for p in group["params"]):
        raise UserError(
            f"optimiser={name_of(make)} trains parameters that are not in the model; "
            "build it from the parameters that it is called with"
        )
    return optimiser


def _make_scheduler(make: MakeScheduler, owner: TorchOptimiser) -> LRScheduler:
    try:
        scheduler = make(owner.optimiser)
    except Exception as error:
        raise UserError(
            f"scheduler={name_of(make)} failed: {summarise(error)}; pass a function such as "
            "lambda optimiser: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)"
        ) from error
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        raise UserError(
            "scheduler must be a function from the optimiser to a scheduler that is a function of "
            f"the step, got {type(scheduler).__name__}; use e.g. CosineAnnealingLR"
        )
    return scheduler


def _make_capturable(optimiser: Optimizer, device: torch.device) -> None:
    """Let a CUDA graph contain the steps: counters and learning rates live on the device."""
    for group in optimiser.param_groups:
        if "capturable" not in group:
            continue
        group["capturable"] = True
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], device=device)


def _shard_state(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the state of a parameter, sharded as the parameter is."""
    return {
        kind: shard_like(value, parameter)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for kind, value in state.items()
    }


def _plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    return _plain({name: value for name, value in group.items() if name != "params"})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that JSON can hold; tensors of one number become numbers."""
    plain = {}
    for name, value in values.items():
        kept = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(kept, list | tuple):
            kept = [one.item() if isinstance(one, Tensor) else one for one in kept]
        try:
            json.dumps(kept)
        except TypeError:
            continue
        plain[name] = kept
    return plain

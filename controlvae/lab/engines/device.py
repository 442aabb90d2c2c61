"""Choice of the device that models train on."""

import torch

from controlvae.errors import UserError


def pick_device(name: str | torch.device) -> torch.device:
    """Return an available device by name. `auto` is the GPU if there is one, else the CPU.

    Raises:
        UserError: If the device is not a CPU or a CUDA GPU, or is not available.
    """
    if isinstance(name, torch.device) and name.type in ("cpu", "cuda"):
        return name
    if not isinstance(name, str | torch.device):
        raise UserError(f"device must be auto, cpu, cuda or cuda:1, got {name!r}")
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if name.partition(":")[0] not in ("cpu", "cuda"):
            raise RuntimeError("models are trained on cpu or cuda")
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(f"device {name!r} is not available ({reason}); try --device auto") from None
    return device

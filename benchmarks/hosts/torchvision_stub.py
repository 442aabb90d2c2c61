"""Empty `torchvision`, for machines whose torch has no matching build of it.

LeRobot imports torchvision for cameras. A policy without cameras uses nothing of it.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _EmptyModule(ModuleType):
    """Module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    """Finds an empty module for `torchvision` and everything below it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_vision = fullname.partition(".")[0] == "torchvision"
        return ModuleSpec(fullname, self, is_package=True) if is_vision else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def import_lerobot() -> None:
    """Import LeRobot, with an empty torchvision if there is no real one.

    `transformers` is optional in LeRobot. It is hidden next to the stub, because it would use
    torchvision.
    """
    if find_spec("torchvision") is None:
        import datasets  # noqa: F401  (looks for torchvision when it is imported)
        import lerobot.utils.import_utils as lerobot_imports

        lerobot_imports._transformers_available = False
        sys.meta_path.append(_Finder())
    import lerobot.policies.act.modeling_act  # noqa: F401

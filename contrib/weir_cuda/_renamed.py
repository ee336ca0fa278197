# SPDX-License-Identifier: MIT
"""For the modules weir_ctypes, weir_cupy, weir_numba, weir_rmm, weir_torch and weir_torch_snapshot: names before 0.1."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType


def tell(old: str, new: str) -> None:
    warnings.warn(f"the module {old} is now {new}", DeprecationWarning, stacklevel=3)


def become(old: str, module: ModuleType) -> None:
    """Whoever imports the old name gets the module itself."""
    tell(old, module.__name__)
    sys.modules[old] = module

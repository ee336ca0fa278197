# SPDX-License-Identifier: MIT
"""weir_torch: the name that weir_cuda.torch had before 0.1.  It goes with the release after 0.1."""

from weir_cuda import _renamed, torch

_renamed.become(__name__, torch)

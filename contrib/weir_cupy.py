# SPDX-License-Identifier: MIT
"""weir_cupy: the name that weir_cuda.cupy had before 0.1.  It goes with the release after 0.1."""

from weir_cuda import _renamed, cupy

_renamed.become(__name__, cupy)

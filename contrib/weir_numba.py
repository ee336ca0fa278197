# SPDX-License-Identifier: MIT
"""weir_numba: the name that weir_cuda.numba had before 0.1.  It goes with the release after 0.1."""

from weir_cuda import _renamed, numba

_renamed.become(__name__, numba)

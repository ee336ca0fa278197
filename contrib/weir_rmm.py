# SPDX-License-Identifier: MIT
"""weir_rmm: the name that weir_cuda.rmm had before 0.1.  It goes with the release after 0.1."""

from weir_cuda import _renamed, rmm

_renamed.become(__name__, rmm)

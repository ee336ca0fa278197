# SPDX-License-Identifier: MIT
"""weir_ctypes: the name that weir_cuda had before 0.1.  It goes with the release after 0.1."""

from weir_cuda import Allocator, Error, OutOfMemoryError as OutOfMemory, Statistics  # noqa: F401
from weir_cuda import _library, _renamed
from weir_cuda._allocator import check  # noqa: F401
from weir_cuda._library import (  # noqa: F401
    BYTES,
    DEVICE_LOST,
    LIMIT,
    MAX,
    NO_MEMORY,
    NOT_SUPPORTED,
    OF_TOTAL,
    Amount,
    adapters,
)

library = _library.library()
_renamed.tell(__name__, "weir_cuda")

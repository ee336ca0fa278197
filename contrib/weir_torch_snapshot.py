# SPDX-License-Identifier: MIT
"""weir_torch_snapshot: the name that weir_cuda.torch_snapshot had before 0.1.  It goes with the release after 0.1."""

import sys

from weir_cuda import _renamed, torch_snapshot

if __name__ == "__main__":
    sys.exit(torch_snapshot.main())
_renamed.become(__name__, torch_snapshot)

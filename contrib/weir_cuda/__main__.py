# SPDX-License-Identifier: MIT
"""`python -m weir_cuda' is the program weir."""

from weir_cuda._program import main

main()

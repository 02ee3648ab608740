"""Kernels run in Triton's interpreter, which has to be said before Triton is first imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

"""Verification of drafts, many requests at once: what `kernels/reference/verification` says one by one."""

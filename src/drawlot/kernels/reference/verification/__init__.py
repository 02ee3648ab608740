"""Verification of drafts by the table of `docs/semantics.md`, section 4: one file a method, float64."""

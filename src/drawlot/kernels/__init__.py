"""One folder per backend, with the same file and function names in each; `registry` chooses between them.

`reference` is the specification: float64, loops over rows that read like `docs/semantics.md`. Every other backend is
compared with it.
"""

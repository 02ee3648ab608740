"""Benchmarks; `make bench` runs `benchmarks.cpu_sampler`. Run them alone on the machine."""

"""drawlot: turns an LLM's logits into tokens, exactly, fast and reproducibly."""

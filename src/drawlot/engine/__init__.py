"""A lean engine on Hugging Face models, built on the public sampling library."""

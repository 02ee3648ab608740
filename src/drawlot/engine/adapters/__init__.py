"""Everything that touches transformers' moving API."""

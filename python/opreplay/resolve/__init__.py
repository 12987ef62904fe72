"""Resolves recorded calls: a call comes in, an operator with typed arguments goes out."""

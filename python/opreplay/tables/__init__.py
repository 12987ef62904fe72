"""Builds integer inputs of attention and MoE operators: lengths, block tables, routing tables."""

"""Reads profiler traces: a file comes in, recorded calls and their groups go out."""

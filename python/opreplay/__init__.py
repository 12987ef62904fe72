"""Replays operator calls out of PyTorch profiler traces and measures them from a C++ loop."""

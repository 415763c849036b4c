"""The targets of the fuzzer: one module for each kind of bytes that come from outside, or from a disk."""

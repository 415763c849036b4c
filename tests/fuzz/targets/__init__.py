"""What is fuzzed: one module for each kind of bytes that come from outside, or from a disk."""

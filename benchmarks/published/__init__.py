"""Studies by several buffers of this software and from files; two of them are published ones."""

"""Durable files and folders, checksums, and arrays and state as bytes, for all that must survive a crash.

Offers: checksums, disk, folders, library_file, lines, links, ownership, plain_state, sample_file, shards, tensor_file,
    typed.
"""

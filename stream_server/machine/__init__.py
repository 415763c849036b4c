"""The operating system: processes, cores, descriptors, terminals, shared memory, signals, locks; garbage collection.

Offers: caches, cgroups, descriptors, exit_watch, forced_exit, garbage, interpreter, log_end, network,
    private_folder, processes, program, refusals, run_folder, screen, shared_memory, signals, study_lock, terminal.
May import: storage.
"""

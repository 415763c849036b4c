"""From `Data` messages to samples in the buffer, and the account of all of them.

Offers: account, admission, assembly, attempts, client_segment, credit, filling, intake, ledger, mailbox, parameters,
    source, state, validation_store.
May import: buffers, messages, server.progress.
"""

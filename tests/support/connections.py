"""A connection file, and keys, for tests in which nobody connects."""

from stream_server.messages.connection import ConnectionFile, Security

NOWHERE = ConnectionFile(study="s", incarnation=1, host="nowhere", control=("ipc:///nowhere/control",))
SECURITY = Security(server_public_key="S" * 40, client_public_key="P" * 40, client_secret_key="s" * 40)

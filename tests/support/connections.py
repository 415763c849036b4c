"""A connection file for tests in which nobody connects."""

from stream_server.messages.connection import ConnectionFile

NOWHERE = ConnectionFile(study="s", incarnation=1, host="nowhere", control=("ipc:///nowhere/control",))

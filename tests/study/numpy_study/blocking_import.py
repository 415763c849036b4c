"""A server whose import never ends."""

from server import LinearServer
from stalling_server import block

__all__ = ["LinearServer"]

print("blocked", flush=True)
block(deaf=False)

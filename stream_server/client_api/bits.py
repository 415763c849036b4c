"""A growing set of small integers."""


class Bits:
    """One bit per number, little-endian bit order; `len` counts those that are set."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = bytearray(content)
        self._num = sum(byte.bit_count() for byte in content)

    def __len__(self) -> int:
        return self._num

    def __contains__(self, number: int) -> bool:
        byte = number >> 3
        return byte < len(self._content) and bool(self._content[byte] >> (number & 7) & 1)

    def add(self, number: int) -> bool:
        """Set a bit; False if it was set before."""
        byte, bit = number >> 3, 1 << (number & 7)
        content = self._content
        if byte >= len(content):
            content.extend(bytes(byte + 1 - len(content)))
        elif content[byte] & bit:
            return False
        content[byte] |= bit
        self._num += 1
        return True

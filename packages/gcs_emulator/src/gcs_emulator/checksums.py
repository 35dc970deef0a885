"""The checksums of an object: MD5 and CRC-32C, in base64 like in the API.

CRC-32C is computed by `google_crc32c` if that is installed (the client library depends on it), else by a table in
pure Python, at some megabytes per second.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib import import_module

POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def md5_base64(content: bytes) -> str:
    """Return the MD5 of the content in base64."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def crc32c_base64(content: bytes) -> str:
    """Return the CRC-32C of the content, big-endian, in base64."""
    return base64.b64encode(_crc32c()(content).to_bytes(4, "big")).decode()


@cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        return value

    return tuple(entry(byte) for byte in range(256))


def crc32c_in_python(content: bytes) -> int:
    """Return the CRC-32C of the content as an integer, in pure Python."""
    table, value = _table(), 0xFFFFFFFF
    for byte in content:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    try:
        library = import_module("google_crc32c")
    except ImportError:
        return crc32c_in_python
    return lambda content: int(library.value(content))

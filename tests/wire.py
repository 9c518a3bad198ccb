"""What records of Avro and Protocol Buffers consist of, for tests that make them byte by byte."""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pb2


def varint(n: int) -> bytes:
    n, out = n & (1 << 64) - 1, bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def avro_long(n: int) -> bytes:
    return varint((n << 1) ^ (n >> 63))


def descriptor_set(file: descriptor_pb2.FileDescriptorProto) -> str:
    """As the option `descriptor_set` wants it."""
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()

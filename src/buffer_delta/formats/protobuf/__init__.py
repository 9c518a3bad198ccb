"""Protocol Buffers: bytes to columns. Needs the extra `[protobuf]`."""

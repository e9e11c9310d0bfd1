"""Reading and writing of safetensors files with numpy: 8-byte little-endian header length, JSON header, raw data."""

import json
import struct

import numpy as np

# Formats numpy lacks are handed out as their bytes.
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}


class SafetensorsFile:
    def __init__(self, path):
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            self.entries = json.loads(file.read(size))
        self.entries.pop("__metadata__", None)
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size) if self.entries else None

    def read(self, name):
        """(dtype string, array)"""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        data = np.frombuffer(self._bytes[begin:end].tobytes(), dtype=DTYPES[entry["dtype"]])
        return entry["dtype"], data.reshape(entry["shape"])


def write_safetensors(path, tensors):
    """tensors: name to (dtype string, array with that dtype's numpy type)."""
    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        if array.dtype != DTYPES[dtype]:
            raise ValueError("%s: %s stored as %s, not %s" % (name, dtype, np.dtype(DTYPES[dtype]), array.dtype))
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())

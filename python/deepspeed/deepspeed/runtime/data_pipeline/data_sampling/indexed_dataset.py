"""Indexed data sets: rows of numbers in <name>.bin, and where each begins in <name>.idx, both read from memory-mapped files.
The layout is DeepSpeed's and Megatron's, so files travel both ways; docs/data_efficiency.md describes it."""

import os
import struct

import numpy as np
import torch

from capstan.durable_file import durable_file
from capstan.errors import ConfigError, IoError

dtypes = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint16, 7: np.uint32, 8: np.uint64}
_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, rows, entries of the document index


def code(dtype):
    for number, each in dtypes.items():
        if each == dtype:
            return number
    raise ConfigError(f"rows of {np.dtype(dtype).name} cannot be stored", "MMapIndexedDataset", "give an integer dtype")


def index_file_path(prefix_path):
    return prefix_path + ".idx"


def data_file_path(prefix_path):
    return prefix_path + ".bin"


def best_fitting_dtype(vocab_size=None):
    """For token ids below `vocab_size`."""
    return np.uint16 if vocab_size is not None and vocab_size < 65500 else np.int32


def find_fit_int_dtype(min_value, max_value):
    """The smallest integer dtype that holds both."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64) if min_value >= 0 else (np.int8, np.int16, np.int32, np.int64)
    return next(kind for kind in kinds if np.iinfo(kind).min <= min_value and max_value <= np.iinfo(kind).max)


class MMapIndexedDataset(torch.utils.data.Dataset):
    """Rows by number: dataset[i] is a numpy array, dataset.get(i, offset, length) a part of one."""

    def __init__(self, path, skip_warmup=True):
        self._open(path)

    def _open(self, path):
        self._path = path
        try:
            index = np.memmap(index_file_path(path), mode="r", order="C")
        except (OSError, ValueError) as error:
            raise IoError(f"cannot read the index: {error}", index_file_path(path), "give the path without .idx") from None
        if len(index) < _HEAD.size or bytes(index[:9]) != _MAGIC:
            raise IoError("this is no index of an indexed data set", index_file_path(path), "run the analyzer again")
        _, version, number, rows, documents = _HEAD.unpack(bytes(index[:_HEAD.size]))
        if version != 1 or number not in dtypes:
            raise IoError(f"version {version} with dtype {number} is not known", index_file_path(path), "write it as version 1")
        if len(index) < _HEAD.size + 12 * rows + 8 * documents:
            raise IoError("the index ends early", index_file_path(path), "copy it again, or run the analyzer again")
        self._dtype = np.dtype(dtypes[number])
        self._sizes = np.frombuffer(index, np.int32, rows, _HEAD.size)
        self._pointers = np.frombuffer(index, np.int64, rows, _HEAD.size + 4 * rows)
        self._doc_idx = np.frombuffer(index, np.int64, documents, _HEAD.size + 12 * rows)
        size = os.path.getsize(data_file_path(path)) if os.path.exists(data_file_path(path)) else -1
        end = 0 if rows == 0 else int(np.max(self._pointers + self._sizes.astype(np.int64) * self._dtype.itemsize))
        if size < end:
            raise IoError("the data are missing" if size < 0 else f"the data have {size} bytes of {end}", data_file_path(path),
                          "copy it again, or run the analyzer again")
        self._data = np.memmap(data_file_path(path), mode="r", order="C") if size > 0 else np.empty(0, np.uint8)

    def __getstate__(self):
        return self._path

    def __setstate__(self, path):
        self._open(path)

    def __len__(self):
        return len(self._sizes)

    def get(self, idx, offset=0, length=None):
        length = int(self._sizes[idx]) - offset if length is None else length
        return np.frombuffer(self._data, self._dtype, length, int(self._pointers[idx]) + offset * self._dtype.itemsize)

    def __getitem__(self, idx):
        if isinstance(idx, slice):
            return [self[i] for i in range(*idx.indices(len(self)))]
        if not -len(self) <= idx < len(self):
            raise IndexError(f"row {idx} of {len(self)}")
        return self.get(idx % len(self))

    @property
    def sizes(self):
        return self._sizes

    @property
    def dtype(self):
        return self._dtype

    @property
    def doc_idx(self):
        return self._doc_idx

    def size(self, index):
        return self._sizes[index]

    @property
    def supports_prefetch(self):
        return False

    @staticmethod
    def exists(path):
        return os.path.exists(index_file_path(path)) and os.path.exists(data_file_path(path))


class MMapIndexedDatasetBuilder:
    """Writes rows one after another into `out_file` (<name>.bin); finalize(<name>.idx) writes the index, whole or not at all."""

    def __init__(self, out_file, dtype=np.int64):
        self._dtype, self._sizes, self._doc_idx = np.dtype(dtype), [], [0]
        code(self._dtype)
        self._file = open(out_file, "wb")

    def add_item(self, tensor):
        row = np.asarray(tensor)
        limits = np.iinfo(self._dtype)
        if row.size and not (limits.min <= row.min() and row.max() <= limits.max):
            raise ConfigError(f"a row has numbers from {row.min()} to {row.max()}", f"a data set of {self._dtype.name}",
                              "make the builder with a wider dtype")
        self._file.write(row.astype(self._dtype).tobytes(order="C"))
        self._sizes.append(row.size)

    def end_document(self):
        self._doc_idx.append(len(self._sizes))

    def merge_file_(self, another_file):
        """All rows and documents of a data set of the same dtype."""
        other, begin = MMapIndexedDataset(another_file), len(self._sizes)
        if other.dtype != self._dtype:
            raise ConfigError(f"{another_file} has rows of {other.dtype.name}, this one of {self._dtype.name}", "merge_file_",
                              "merge data sets of one dtype")
        for row in range(len(other)):
            self._file.write(other[row].tobytes(order="C"))
        self._sizes.extend(other.sizes.tolist())
        self._doc_idx.extend((begin + other.doc_idx[1:]).tolist())

    def finalize(self, index_file):
        self._file.close()
        sizes = np.array(self._sizes, np.int32)
        ends = np.cumsum(sizes.astype(np.int64) * self._dtype.itemsize)
        with durable_file(index_file) as beside, open(beside, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, 1, code(self._dtype), len(sizes), len(self._doc_idx)))
            for part in (sizes, np.concatenate(([0], ends[:-1])).astype(np.int64)[:len(sizes)], np.array(self._doc_idx, np.int64)):
                file.write(part.tobytes(order="C"))


def make_builder(out_file, impl="mmap", vocab_size=None):
    return MMapIndexedDatasetBuilder(out_file, dtype=best_fitting_dtype(vocab_size))


def make_dataset(path, impl="mmap", skip_warmup=True):
    return MMapIndexedDataset(path, skip_warmup)


def dataset_exists(path, impl="mmap"):
    return MMapIndexedDataset.exists(path)

// What a pickle holds, as plain data: no code of a pickle is ever run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/checkpoint/element.h"

namespace capstan::checkpoint {

struct PyValue;
// Shared, because a pickle is a graph: one list or tensor may stand in several places.
using PyRef = std::shared_ptr<PyValue>;

enum class PyKind { none, boolean, integer, real, text, list, tuple, dict, tensor, object };

// Elements of a tensor that lie in one storage of an archive.
struct PyTensor {
  Element element = Element::f32;
  std::string storage;      // the archive's record
  std::int64_t offset = 0;  // elements from the storage's begin
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;

  std::int64_t elems() const;
  bool contiguous() const;
};

struct PyValue {
  PyKind kind = PyKind::none;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;                           // of a text; the class of an object: "module.name"
  std::vector<PyRef> items;                   // of a list, a tuple, a set; arguments of an object
  std::vector<std::pair<PyRef, PyRef>> dict;  // of a dict in its order; attributes of an object
  PyTensor tensor;
  // What the reader of a pickle keeps count of: levels from here down, values below this where each
  // place of a shared one counts, and whether this stands in another value already.
  int depth = 1;
  std::int64_t size = 1;
  bool held = false;

  // The entry of a dict (or attribute) with this key; null when there is none.
  const PyValue* find(std::string_view key) const;
  const PyValue* find(std::int64_t key) const;
  // An integer, a real or a bool as a number.
  double number() const;
};

// Values to write.
PyRef py_none();
PyRef py_bool(bool value);
PyRef py_int(std::int64_t value);
PyRef py_real(double value);
PyRef py_text(std::string value);
PyRef py_list(std::vector<PyRef> items);
PyRef py_tuple(std::vector<PyRef> items);
PyRef py_dict(std::vector<std::pair<PyRef, PyRef>> entries);
PyRef py_tensor(PyTensor tensor);
// A class with arguments (called with them) and, where it has some, attributes; with neither it
// stands for itself, as torch.float16 does.
PyRef py_object(std::string class_name, std::vector<PyRef> arguments,
                std::vector<std::pair<PyRef, PyRef>> attributes = {});

}  // namespace capstan::checkpoint

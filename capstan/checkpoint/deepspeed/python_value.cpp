#include "capstan/checkpoint/deepspeed/python_value.h"

#include <functional>
#include <numeric>

namespace capstan::checkpoint {
namespace {

PyRef make_py(PyKind kind) {
  auto value = std::make_shared<PyValue>();
  value->kind = kind;
  return value;
}

}  // namespace

std::int64_t PyTensor::elems() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool PyTensor::contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

const PyValue* PyValue::find(std::string_view key) const {
  for (const auto& [name, value] : dict) {
    if (name->kind == PyKind::text && name->text == key) return value.get();
  }
  return nullptr;
}

const PyValue* PyValue::find(std::int64_t key) const {
  for (const auto& [name, value] : dict) {
    if (name->kind == PyKind::integer && name->integer == key) return value.get();
  }
  return nullptr;
}

double PyValue::number() const {
  if (kind == PyKind::real) return real;
  return kind == PyKind::boolean ? static_cast<double>(boolean) : static_cast<double>(integer);
}

PyRef py_none() { return make_py(PyKind::none); }

PyRef py_bool(bool value) {
  PyRef made = make_py(PyKind::boolean);
  made->boolean = value;
  return made;
}

PyRef py_int(std::int64_t value) {
  PyRef made = make_py(PyKind::integer);
  made->integer = value;
  return made;
}

PyRef py_real(double value) {
  PyRef made = make_py(PyKind::real);
  made->real = value;
  return made;
}

PyRef py_text(std::string value) {
  PyRef made = make_py(PyKind::text);
  made->text = std::move(value);
  return made;
}

PyRef py_list(std::vector<PyRef> items) {
  PyRef made = make_py(PyKind::list);
  made->items = std::move(items);
  return made;
}

PyRef py_tuple(std::vector<PyRef> items) {
  PyRef made = make_py(PyKind::tuple);
  made->items = std::move(items);
  return made;
}

PyRef py_dict(std::vector<std::pair<PyRef, PyRef>> entries) {
  PyRef made = make_py(PyKind::dict);
  made->dict = std::move(entries);
  return made;
}

PyRef py_tensor(PyTensor tensor) {
  PyRef made = make_py(PyKind::tensor);
  made->tensor = std::move(tensor);
  return made;
}

PyRef py_object(std::string class_name, std::vector<PyRef> arguments,
                std::vector<std::pair<PyRef, PyRef>> attributes) {
  PyRef made = make_py(PyKind::object);
  made->text = std::move(class_name);
  made->items = std::move(arguments);
  made->dict = std::move(attributes);
  return made;
}

}  // namespace capstan::checkpoint

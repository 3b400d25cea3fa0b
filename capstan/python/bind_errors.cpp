#include <exception>

#include <torch/csrc/Exceptions.h>

#include "capstan/base/error.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

// The classes live in capstan/errors.py, where they have their three attributes and documentation.
void raise(const char* name, const Error& error) {
  const py::object type = py::module_::import("capstan.errors").attr(name);
  const ErrorInfo& info = error.info();
  PyErr_SetObject(type.ptr(), type(info.what, info.where, info.fix).ptr());
}

}  // namespace

void bind_errors(py::module_& /*module*/) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (python_error& error) {
      error.restore();  // a Python exception that came through autograd
    } catch (const OutOfMemory& error) {
      raise("OutOfMemoryError", error);
    } catch (const ConfigError& error) {
      raise("ConfigError", error);
    } catch (const IoError& error) {
      raise("IoError", error);
    } catch (const CommError& error) {
      raise("CommError", error);
    } catch (const Error& error) {
      raise("InternalError", error);
    }
  });
}

}  // namespace capstan::python

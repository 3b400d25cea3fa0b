#include <optional>
#include <tuple>

#include <pybind11/stl.h>

#include "capstan/config/batch.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

using Size = std::optional<std::int64_t>;

std::tuple<Size, Size, Size> complete_batch(Size train, Size micro, Size accumulation,
                                            std::int64_t ranks) {
  const auto number = [](Size value) {
    return config::BatchNumber{value, {config::OriginKind::file, "given"}};
  };
  const config::Batch batch = config::complete_batch(
      {.train = number(train),
       .micro = number(micro),
       .accumulation = number(accumulation),
       .ranks = {ranks, {config::OriginKind::environment, "the number of data-parallel ranks"}},
       .required = true},
      "the batch");
  if (!batch.problems.empty()) throw ConfigError(batch.problems.front());
  return {batch.train.value, batch.micro.value, batch.accumulation.value};
}

}  // namespace

void bind_batch(py::module_& module) {
  module.def("complete_batch", &complete_batch, py::arg("train"), py::arg("micro"),
             py::arg("accumulation"), py::arg("ranks"),
             "The three batch sizes from those that are not None. Raises ConfigError.");
}

}  // namespace capstan::python

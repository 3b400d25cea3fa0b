#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/Functions.h>

#include "capstan/base/counter_random.h"
#include "capstan/base/error.h"
#include "capstan/data/choose.h"
#include "capstan/data/difficulty_sampler.h"
#include "capstan/python/bind.h"

namespace capstan::python {
namespace py = pybind11;
namespace {

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.to(at::kCPU, at::kLong).contiguous();
  const auto* const begin = whole.const_data_ptr<std::int64_t>();
  return {begin, begin + whole.numel()};
}

data::MetricOrder metric_order(const at::Tensor& samples, const at::Tensor& values,
                               std::int64_t percentiles) {
  using Bound = data::MetricOrder::Bound;
  return {.bound = percentiles > 0 ? Bound::percentile : Bound::value,
          .samples = numbers(samples),
          .values = numbers(values),
          .percentiles = percentiles};
}

// A row of positions for each sample of a batch.
at::Tensor choose_positions(std::int64_t rows, std::int64_t count, std::int64_t kept,
                            std::uint64_t seed) {
  if (rows < 0 || kept < 0 || kept > count) {
    throw ConfigError({.what = "cannot keep " + std::to_string(kept) + " of " +
                               std::to_string(count) + " positions",
                       .where = "choose_positions",
                       .fix = "keep at most as many as there are"});
  }
  at::Tensor chosen = at::empty({rows, kept}, at::kLong);
  auto* const begin = chosen.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    data::choose_positions(count, derive_seed(seed, static_cast<std::uint64_t>(row)),
                           {begin + row * kept, static_cast<std::size_t>(kept)});
  }
  return chosen;
}

}  // namespace

void bind_data(py::module_& module) {
  using data::DifficultySampler;
  py::class_<data::MetricOrder>(module, "MetricOrder", "How one metric orders the samples.")
      .def(py::init(&metric_order), py::arg("samples"), py::arg("values"),
           py::arg("percentiles") = 0);
  py::class_<DifficultySampler>(module, "DifficultySampler",
                                "Which samples come next where a curriculum admits harder ones.")
      .def(py::init<std::int64_t, std::vector<data::MetricOrder>, std::uint64_t>(),
           py::arg("samples"), py::arg("metrics"), py::arg("seed"))
      .def("admit", &DifficultySampler::admit, py::arg("difficulties"),
           "From here on also samples of at most these difficulties, one per metric.")
      .def("next", &DifficultySampler::next, py::arg("count"), "The next samples of all ranks.")
      .def("skip", &DifficultySampler::skip, py::arg("count"), "As next(), for a run that goes on.")
      .def_property_readonly("taken", &DifficultySampler::taken)
      .def_property_readonly("admitted", &DifficultySampler::admitted);
  module.def("choose_positions", &choose_positions, py::arg("rows"), py::arg("count"),
             py::arg("kept"), py::arg("seed"),
             "For each row so many different positions of [0, count), rising; a function of the "
             "seed alone.");
  module.def("derive_seed", &derive_seed, py::arg("seed"), py::arg("number"),
             "A seed for the number-th thing that needs one.");
}

}  // namespace capstan::python

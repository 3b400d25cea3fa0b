#include "capstan/base/cpu_isa.h"
#include "capstan/python/bind.h"
#include "capstan/python/bind_checkpoint.h"

PYBIND11_MODULE(_C, module) {
  capstan::avoid_broken_amx();
  module.doc() = "The C++ engine behind the package capstan.";
  capstan::python::bind_errors(module);
  capstan::python::bind_config(module);
  capstan::python::bind_batch(module);
  capstan::python::bind_schedule(module);
  capstan::python::bind_data(module);
  capstan::python::bind_layout(module);
  capstan::python::bind_launch(module);
  capstan::python::bind_optim(module);
  capstan::python::bind_group(module);
  capstan::python::bind_sequence(module);
  capstan::python::bind_tensor(module);
  capstan::python::bind_profile(module);
  capstan::python::bind_params(module);
  capstan::python::bind_reports(module);
  capstan::python::bind_monitor(module);
  capstan::python::bind_engine(module);
  capstan::python::bind_checkpoint_files(module);
  capstan::python::bind_stored(module);
  capstan::python::bind_pipeline(module);
  capstan::python::bind_estimate(module);
}

// What was decided when capstan was configured; the values are written by CMake.
#pragma once

#include <string_view>

namespace capstan::cli {

struct BuildFacts {
  std::string_view version;
  std::string_view compiler;       // "GNU 12.2.0"
  std::string_view build_type;     // "Release"
  std::string_view sanitizers;     // empty: none
  std::string_view torch_version;  // empty: built without libtorch
  std::string_view torch_folder;
  std::string_view torch_cuda;     // the CUDA that libtorch was built for; empty: a CPU wheel
  std::string_view cuda_compiler;  // "13.0.88"; empty: no CUDA sources in this build
  std::string_view cuda_architectures;
  std::string_view mpi_standard;  // "3.1"; empty: built without MPI
  bool nccl = false;
  bool uring = false;
};

[[nodiscard]] BuildFacts build_facts();

}  // namespace capstan::cli

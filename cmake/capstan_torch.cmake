# The libtorch inside a Python wheel, as imported targets:
#   capstan::torch       torch_cpu and c10: all that a CPU program needs, no driver, no toolkit
#   capstan::torch_cuda  torch_cuda and c10_cuda, kept by the linker so that its backends register
#   capstan::cuda_runtime  the very libcudart that torch_cuda loads: one CUDA runtime per process
# find_package(Torch) is not used: with a CUDA wheel it insists on a CUDA toolkit.
# This file is installed beside capstanConfig.cmake and serves out-of-tree programs as well.
if(CAPSTAN_TORCH STREQUAL "OFF")
  return()
endif()

# `pip install .` says for whom it builds; that may be another environment than the last time.
if(SKBUILD AND NOT "${CAPSTAN_PYTHON_EXECUTABLE}" STREQUAL "${Python3_EXECUTABLE}")
  set(CAPSTAN_PYTHON_EXECUTABLE "${Python3_EXECUTABLE}" CACHE FILEPATH "The Python whose torch is linked" FORCE)
  unset(CAPSTAN_TORCH_DIR CACHE)
  unset(CAPSTAN_CUDART CACHE)
endif()

if(NOT CAPSTAN_TORCH_DIR)
  if(NOT CAPSTAN_PYTHON_EXECUTABLE)
    find_program(CAPSTAN_PYTHON_EXECUTABLE NAMES python3)
  endif()
  # find_spec does not import torch, which would take seconds. `pip install .` hides the environment that it
  # installs into behind PYTHONPATH: where there is no torch, -I looks there.
  foreach(isolated "" -I)
    if(NOT capstan_torch_dir)
      execute_process(
        COMMAND ${CAPSTAN_PYTHON_EXECUTABLE} ${isolated} -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE capstan_torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endforeach()
  set(CAPSTAN_TORCH_DIR "${capstan_torch_dir}" CACHE PATH "The folder of the torch package" FORCE)
endif()

if(EXISTS "${CAPSTAN_TORCH_DIR}/lib/libtorch_cpu.so")
  set(CAPSTAN_TORCH_FOUND ON)
  file(STRINGS "${CAPSTAN_TORCH_DIR}/version.py" capstan_torch_version REGEX "^__version__")
  string(REGEX REPLACE ".*'([^']+)'.*" "\\1" CAPSTAN_TORCH_VERSION "${capstan_torch_version}")
  message(STATUS "capstan: libtorch ${CAPSTAN_TORCH_VERSION} in ${CAPSTAN_TORCH_DIR}")
else()
  return()
endif()

set(capstan_torch_lib "${CAPSTAN_TORCH_DIR}/lib")
if(NOT TARGET capstan::torch)
  add_library(capstan::torch INTERFACE IMPORTED)
  target_include_directories(capstan::torch SYSTEM INTERFACE
    "${CAPSTAN_TORCH_DIR}/include" "${CAPSTAN_TORCH_DIR}/include/torch/csrc/api/include")
  # The wheel's include folder carries its own fmt headers but no fmt library.
  target_compile_definitions(capstan::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY=1)
  # The wheel's libraries find each other by RUNPATH at run time; the linker need not resolve them.
  target_link_options(capstan::torch INTERFACE
    "LINKER:-rpath,${capstan_torch_lib}" "LINKER:--allow-shlib-undefined")
  target_link_libraries(capstan::torch INTERFACE
    "${capstan_torch_lib}/libtorch_cpu.so" "${capstan_torch_lib}/libc10.so")
endif()
if(EXISTS "${capstan_torch_lib}/libtorch_cuda.so" AND NOT TARGET capstan::torch_cuda)
  add_library(capstan::torch_cuda INTERFACE IMPORTED)
  target_link_libraries(capstan::torch_cuda INTERFACE capstan::torch
    "-Wl,--push-state,--no-as-needed" "${capstan_torch_lib}/libtorch_cuda.so" "${capstan_torch_lib}/libc10_cuda.so"
    "-Wl,--pop-state")
endif()

get_filename_component(capstan_torch_site "${CAPSTAN_TORCH_DIR}" DIRECTORY)
find_file(CAPSTAN_CUDART libcudart.so.13 NO_DEFAULT_PATH
  PATHS "${capstan_torch_site}/nvidia/cu13/lib" "${capstan_torch_lib}" /usr/local/cuda/lib64)
if(CAPSTAN_CUDART AND NOT TARGET capstan::cuda_runtime)
  get_filename_component(capstan_cudart_dir "${CAPSTAN_CUDART}" DIRECTORY)
  add_library(capstan::cuda_runtime INTERFACE IMPORTED)
  target_link_options(capstan::cuda_runtime INTERFACE "LINKER:-rpath,${capstan_cudart_dir}")
  target_link_libraries(capstan::cuda_runtime INTERFACE "${CAPSTAN_CUDART}")
endif()

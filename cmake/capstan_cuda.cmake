# The CUDA compiler: the system's, or with CAPSTAN_CUDA=wheels the one in the Python wheels.
# Adds CUDA's headers to capstan::cuda_runtime, which our own CUDA sources link.
if(CAPSTAN_CUDA STREQUAL "OFF" OR NOT TARGET capstan::torch_cuda)
  return()
endif()
set(CAPSTAN_NCCL_FOUND ON)  # the wheel's torch_cuda carries ProcessGroupNCCL

get_filename_component(capstan_site "${CAPSTAN_TORCH_DIR}" DIRECTORY)
set(capstan_cuda_wheels "${capstan_site}/nvidia/cu13")
if(CAPSTAN_CUDA STREQUAL "wheels")
  set(capstan_nvcc_file "${capstan_cuda_wheels}/bin/nvcc")
  # nvcc's own profile names lib64, the wheels have lib: CMake's trial link needs to be told.
  string(APPEND CMAKE_CUDA_FLAGS " -L${capstan_cuda_wheels}/lib")
else()
  find_program(capstan_nvcc_file nvcc PATHS /usr/local/cuda/bin)
endif()
if(NOT EXISTS "${capstan_nvcc_file}")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${capstan_nvcc_file}")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # Real code for the generations in use, and the newest also as PTX for later cards.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU generations to compile for")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # capstan::cuda_runtime instead: one runtime per process

find_path(CAPSTAN_CUDA_INCLUDE cuda_runtime.h
  PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} "${capstan_cuda_wheels}/include" NO_DEFAULT_PATH)
if(CAPSTAN_CUDA_INCLUDE AND TARGET capstan::cuda_runtime)
  target_include_directories(capstan::cuda_runtime SYSTEM INTERFACE "${CAPSTAN_CUDA_INCLUDE}")
  set(CAPSTAN_CUDA_FOUND ON)
endif()

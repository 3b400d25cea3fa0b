# Which optional parts this machine can build. Each part ends as CAPSTAN_HAVE_<PART>, and a folder
# then compiles x.cpp or x_absent.cpp. A part set to ON that is missing stops the configuration.
function(capstan_part name found hint)
  if(CAPSTAN_${name} STREQUAL "OFF")
    set(have OFF)
  elseif(found)
    set(have ON)
  elseif(CAPSTAN_${name} STREQUAL "AUTO")
    set(have OFF)
  else()
    message(FATAL_ERROR "CAPSTAN_${name}=${CAPSTAN_${name}}, but it was not found. Fix: ${hint}")
  endif()
  set(CAPSTAN_HAVE_${name} ${have} PARENT_SCOPE)
  message(STATUS "capstan: part ${name}: ${have}")
endfunction()

include(capstan_torch)
capstan_part(TORCH "${CAPSTAN_TORCH_FOUND}" "make setup, or -DCAPSTAN_PYTHON_EXECUTABLE=/path/to/a/python3 that has torch; before pip install: pip install torch")

include(capstan_python)
capstan_part(PYTHON "${CAPSTAN_PYTHON_FOUND}" "use a Python with its headers (python3-dev) and a torch wheel")

if(NOT CAPSTAN_MPI STREQUAL "OFF")
  find_package(MPI COMPONENTS CXX QUIET)
endif()
capstan_part(MPI "${MPI_CXX_FOUND}" "apt-get install libopenmpi-dev openmpi-bin")

find_path(CAPSTAN_URING_INCLUDE liburing.h)
find_library(CAPSTAN_URING_LIBRARY uring)
if(CAPSTAN_URING_INCLUDE AND CAPSTAN_URING_LIBRARY)
  set(CAPSTAN_URING_FOUND ON)
endif()
capstan_part(URING "${CAPSTAN_URING_FOUND}" "apt-get install liburing-dev")

include(capstan_cuda)
capstan_part(CUDA "${CAPSTAN_CUDA_FOUND}" "install a CUDA 13 compiler, or CUDA=wheels to take it from the lock file")
capstan_part(NCCL "${CAPSTAN_NCCL_FOUND}" "use a torch wheel that has CUDA")

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

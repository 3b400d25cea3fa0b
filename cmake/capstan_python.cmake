# What an extension module for the interpreter of CAPSTAN_PYTHON_EXECUTABLE needs, without linking
# libpython: its headers (capstan::python_headers), libtorch's Python library (capstan::torch_python)
# and the suffix of extension modules (CAPSTAN_PYTHON_SUFFIX).
if(CAPSTAN_PYTHON STREQUAL "OFF" OR NOT CAPSTAN_HAVE_TORCH)
  return()
endif()
if(NOT CAPSTAN_PYTHON_EXECUTABLE)
  find_program(CAPSTAN_PYTHON_EXECUTABLE NAMES python3)
endif()
execute_process(
  COMMAND ${CAPSTAN_PYTHON_EXECUTABLE} -c
    "import sysconfig as s; print(s.get_paths()['include'], s.get_config_var('EXT_SUFFIX'), sep=';')"
  OUTPUT_VARIABLE capstan_python_facts OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
list(LENGTH capstan_python_facts capstan_python_fact_count)
if(NOT capstan_python_fact_count EQUAL 2)
  return()
endif()
list(GET capstan_python_facts 0 capstan_python_include)
list(GET capstan_python_facts 1 CAPSTAN_PYTHON_SUFFIX)
set(capstan_torch_python "${CAPSTAN_TORCH_DIR}/lib/libtorch_python.so")
if(NOT EXISTS "${capstan_python_include}/Python.h" OR NOT EXISTS "${capstan_torch_python}")
  return()
endif()
add_library(capstan::python_headers INTERFACE IMPORTED)
target_include_directories(capstan::python_headers SYSTEM INTERFACE "${capstan_python_include}")
add_library(capstan::torch_python INTERFACE IMPORTED)
target_link_libraries(capstan::torch_python INTERFACE capstan::torch "${capstan_torch_python}")
set(CAPSTAN_PYTHON_FOUND ON)

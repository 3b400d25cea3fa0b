# One function per kind of thing we build, so that a folder's CMakeLists.txt is only its lists.

set_property(GLOBAL PROPERTY CAPSTAN_TESTS "")
set_property(GLOBAL PROPERTY CAPSTAN_BENCHMARK_LINES "")

# Every target of ours: its warnings, and what capstan_share_headers() finds it by.
function(capstan_flags target)
  set_property(GLOBAL APPEND PROPERTY CAPSTAN_TARGETS ${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
  if(CAPSTAN_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

# capstan_folder(NAME [SOURCES a.cpp …] [DEPENDS folder …] [LINK target …] [PRIVATE target …])
# One folder of capstan/: target capstan_NAME (alias capstan::NAME). DEPENDS names other folders and
# equals the folder's row in tools/layers.txt; LINK is seen by users of the folder, PRIVATE is not.
# A folder with no sources (only headers) becomes an interface library.
function(capstan_folder name)
  cmake_parse_arguments(F "" "" "SOURCES;DEPENDS;LINK;PRIVATE" ${ARGN})
  set(target capstan_${name})
  set(scope PUBLIC)
  if(F_SOURCES)
    add_library(${target} STATIC ${F_SOURCES})
    capstan_flags(${target})
    target_link_libraries(${target} PRIVATE ${F_PRIVATE})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(capstan::${name} ALIAS ${target})
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} ${scope} cxx_std_20)
  list(TRANSFORM F_DEPENDS PREPEND capstan::)
  target_link_libraries(${target} ${scope} ${F_DEPENDS} ${F_LINK})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT capstanTargets)
endfunction()

# capstan_test(NAME SOURCES a_test.cpp … [LINK target …] [HELPERS executable-target …] [ALONE filter] [REDUCED filter])
# The GoogleTest program NAME_test. HELPERS are programs it starts; their folder is in its
# environment as CAPSTAN_BIN (set by tools/run_tests.py). ALONE names those of its tests that measure
# time and so run with nothing beside them. Every test run repeats programs without libtorch under the
# address sanitizer; REDUCED names those of the other tests that it repeats under each sanitizer.
function(capstan_test name)
  cmake_parse_arguments(T "" "ALONE;REDUCED" "SOURCES;LINK;HELPERS" ${ARGN})
  set(target ${name}_test)
  add_executable(${target} ${T_SOURCES})
  capstan_flags(${target})
  # Tests are compiled more often than they run long.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${target} PRIVATE ${T_LINK} capstan_test_main GTest::gmock)
  if(T_HELPERS)
    add_dependencies(${target} ${T_HELPERS})
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES CAPSTAN_FOLDER ${folder} CAPSTAN_ALONE "${T_ALONE}" CAPSTAN_REDUCED "${T_REDUCED}")
  set_property(GLOBAL APPEND PROPERTY CAPSTAN_TESTS ${target})
endfunction()

# capstan_benchmark(NAME SOURCES … [LINK …] [RANKS n]): the program NAME_bench, run by `make bench`;
# with RANKS by `capstan launch`, on that many ranks.
function(capstan_benchmark name)
  cmake_parse_arguments(B "" "RANKS" "SOURCES;LINK" ${ARGN})
  add_executable(${name}_bench ${B_SOURCES})
  capstan_flags(${name}_bench)
  target_link_libraries(${name}_bench PRIVATE ${B_LINK} fmt::fmt)
  if(NOT B_RANKS)
    set(B_RANKS 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY CAPSTAN_BENCHMARK_LINES "${name}_bench ${B_RANKS}\n")
endfunction()

# All programs lie in one folder, so that `capstan` finds `capstan-engine` beside it.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

# For tools/run_tests.py, lines `folder program [filter] [alone]`:
#   tests.txt    every GoogleTest program
#   reduced.txt  what every test run repeats in a tree with this sanitizer; target reduced_tests, of one
#                folder reduced_tests_FOLDER
# benchmarks.txt: lines `program ranks`.
function(capstan_write_manifest)
  get_property(tests GLOBAL PROPERTY CAPSTAN_TESTS)
  add_custom_target(reduced_tests)
  foreach(test ${tests})
    get_target_property(folder ${test} CAPSTAN_FOLDER)
    get_target_property(alone ${test} CAPSTAN_ALONE)
    get_target_property(reduced ${test} CAPSTAN_REDUCED)
    if(alone)
      string(APPEND test_lines "${folder} ${test} -${alone}\n${folder} ${test} ${alone} alone\n")
    else()
      string(APPEND test_lines "${folder} ${test}\n")
    endif()
    capstan_links(${test} capstan::torch over_torch)
    if(NOT over_torch AND CAPSTAN_SANITIZE MATCHES "address")
      set(reduced "*")
    endif()
    if(NOT TARGET reduced_tests_${folder})
      add_custom_target(reduced_tests_${folder})
      add_dependencies(reduced_tests reduced_tests_${folder})
    endif()
    if(reduced)
      string(APPEND reduced_lines "${folder} ${test} ${reduced}\n")
      add_dependencies(reduced_tests_${folder} ${test})
    endif()
  endforeach()
  file(WRITE ${PROJECT_BINARY_DIR}/tests.txt "${test_lines}")
  file(WRITE ${PROJECT_BINARY_DIR}/reduced.txt "${reduced_lines}")
  get_property(lines GLOBAL PROPERTY CAPSTAN_BENCHMARK_LINES)
  list(JOIN lines "" text)
  file(WRITE ${PROJECT_BINARY_DIR}/benchmarks.txt "${text}")
endfunction()

# Compiler flags that hold for every target of ours.
find_program(CAPSTAN_CCACHE ccache)
if(CAPSTAN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache asks for where headers are precompiled: it cannot see macros and times inside them.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CAPSTAN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CAPSTAN_CCACHE})
endif()

# A precompiled header serves libraries and programs where both are compiled alike.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})

# The optimizer kernels promise equal bits from every instruction set: the compiler must not
# contract a*b+c on its own (explicit fma calls stay what they are).
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# Error messages and installed files carry paths relative to the source tree, not of this machine.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_BINARY_DIR}/=build/>)

if(CAPSTAN_SANITIZE)
  add_compile_options(-fsanitize=${CAPSTAN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # GCC 12 takes checked copies of std::function, as std::regex makes them, for uninitialised ones.
  add_compile_options(-Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${CAPSTAN_SANITIZE})
endif()

find_package(Threads REQUIRED)

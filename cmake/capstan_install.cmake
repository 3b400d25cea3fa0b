# cmake --install: programs, libraries, headers, and what find_package(capstan) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/capstan/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/capstan
  FILES_MATCHING PATTERN "*.h")
set(capstan_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/capstan)
install(EXPORT capstanTargets NAMESPACE capstan:: DESTINATION ${capstan_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/capstanConfig.cmake.in
  ${PROJECT_BINARY_DIR}/capstanConfig.cmake INSTALL_DESTINATION ${capstan_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/capstanConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/capstanConfig.cmake ${PROJECT_BINARY_DIR}/capstanConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/capstan_torch.cmake DESTINATION ${capstan_cmake_dir})

# What `pip install .` builds and takes: the extension module, and the programs inside the package.
if(CAPSTAN_HAVE_PYTHON)
  add_custom_target(capstan_package DEPENDS capstan_python)
  foreach(program capstan capstan-engine capstan-engine-cuda)
    if(TARGET ${program})
      add_dependencies(capstan_package ${program})
      install(TARGETS ${program} RUNTIME DESTINATION capstan/bin COMPONENT python EXCLUDE_FROM_ALL)
    endif()
  endforeach()
endif()

# What is installed: headers, both libraries, the pkg-config file, the CMake package, the man pages.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/weir TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(TARGETS weir weir_static EXPORT weirTargets)
install(FILES LICENSE README.md TYPE DOC OPTIONAL)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
install(EXPORT weirTargets NAMESPACE weir:: DESTINATION ${package_dir})
configure_package_config_file(cmake/weirConfig.cmake.in ${PROJECT_BINARY_DIR}/weirConfig.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weirConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weirConfig.cmake ${PROJECT_BINARY_DIR}/weirConfigVersion.cmake
    DESTINATION ${package_dir})

set(WEIR_PC_LIBS_PRIVATE "-pthread")
if(URING_FOUND)
    string(APPEND WEIR_PC_LIBS_PRIVATE " -luring")
endif()
configure_file(cmake/weir.pc.in ${PROJECT_BINARY_DIR}/weir.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

file(GLOB pages CONFIGURE_DEPENDS docs/*.3 docs/man/*.3)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
file(GLOB pages CONFIGURE_DEPENDS docs/*.7 docs/man/*.7)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)

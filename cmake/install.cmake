# Where `cmake --install` puts files. All paths are relative to the prefix, so that --prefix may change it.
include(CMakePackageConfigHelpers)

install(TARGETS tutti tutti_archive EXPORT tuttiTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
file(GLOB headers CONFIGURE_DEPENDS include/tutti/*.h)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${config_dir})
configure_package_config_file(cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
    INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
    DESTINATION ${config_dir})

file(RELATIVE_PATH TUTTI_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

foreach(section 1 7)
    file(GLOB pages CONFIGURE_DEPENDS man/*.${section})
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
# The pages of section 3 come from the comments of the headers: one for each group of functions, and an alias for each name.
find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
    set(pages ${PROJECT_BINARY_DIR}/man)
    add_custom_command(OUTPUT ${pages}/made
        COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
        COMMAND Python3::Interpreter scripts/manual-pages ${pages} ${headers}
        COMMAND ${CMAKE_COMMAND} -E touch ${pages}/made
        DEPENDS scripts/manual-pages ${headers} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
    add_custom_target(tutti_manual ALL DEPENDS ${pages}/made)
    install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 FILES_MATCHING PATTERN *.3)
else()
    message(WARNING "No Python 3.9 or newer: the man pages of the functions (section 3) are left out")
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

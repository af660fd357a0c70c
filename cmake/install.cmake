# Where `cmake --install` puts files. All paths are relative to the prefix, so that --prefix may change it.
include(CMakePackageConfigHelpers)

install(TARGETS tutti tutti_archive EXPORT tuttiTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/tutti/collectives.h include/tutti/communicators.h include/tutti/pg.h include/tutti/recorder.h include/tutti/recovery.h include/tutti/tutti.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti)

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

foreach(section 1 3 7)
    file(GLOB pages CONFIGURE_DEPENDS man/*.${section})
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
# Each function gets a page under its own name: an alias of its group's page, which lists the names under NAME.
file(GLOB pages CONFIGURE_DEPENDS man/*.3)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${pages})
foreach(page ${pages})
    get_filename_component(title ${page} NAME)
    file(READ ${page} text)
    string(REGEX REPLACE ".*\n\\.SH NAME\n(.*)\n\\.SH SYNOPSIS.*" "\\1" text "${text}")
    string(REGEX MATCHALL "tutti_[a-z0-9_]+" functions "${text}")
    foreach(function ${functions})
        set(alias ${PROJECT_BINARY_DIR}/man/${function}.3)
        if(NOT title STREQUAL "${function}.3")
            file(WRITE ${alias} ".so man3/${title}\n")
            install(FILES ${alias} DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
        endif()
    endforeach()
endforeach()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

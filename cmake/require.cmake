# tutti_require(PREFIX PACKAGE USER OPTION): makes PkgConfig::PREFIX from PACKAGE, which pkg-config finds. If the package is
# missing, the error names USER, which needs it, how to install it, and OPTION, which builds without it.
macro(tutti_require prefix package user option)
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${package})
        set(tutti_found "${${prefix}_FOUND}")
        set(tutti_lacks "${package}, which pkg-config does not find")
    else()
        set(tutti_found FALSE)
        set(tutti_lacks "pkg-config, to find ${package}")
    endif()
    if(NOT tutti_found)
        message(FATAL_ERROR "${user} needs ${tutti_lacks}. `make deps` installs it (Debian and Ubuntu); "
            "-D${option}=OFF builds without it.")
    endif()
endmacro()

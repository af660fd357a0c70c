# tutti_require(PREFIX PACKAGE USER OPTION): PkgConfig::PREFIX becomes the package that pkg-config finds. Where it does
# not, says who needs it, how to get it, and which option builds without.
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
            "-D${option}=OFF builds without.")
    endif()
endmacro()

# One target for all rivals that can be built.
add_custom_target(tutti_rivals)

# Each MPI's wrapper knows its flags. Several MPIs can be installed side by side; those from PyPI lie in the folders of
# scripts/rivals.
function(rival_mpi name wrapper compile_flag link_flag)
    find_program(MPICC_${name} ${wrapper} PATHS ${ARGN} NO_CACHE)
    if(NOT MPICC_${name})
        message(STATUS "rivals: ${name} is not installed")
        return()
    endif()
    execute_process(COMMAND ${MPICC_${name}} ${compile_flag} OUTPUT_VARIABLE compile
        OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${MPICC_${name}} ${link_flag} OUTPUT_VARIABLE link
        OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(includes UNIX_COMMAND "${compile}")
    list(FILTER includes INCLUDE REGEX "^-I")
    list(TRANSFORM includes REPLACE "^-I" "")
    separate_arguments(libraries UNIX_COMMAND "${link}")
    list(FILTER libraries INCLUDE REGEX "^(-[Ll]|-Wl,)")
    add_executable(tutti-bench-${name} rival_mpi.c rival_worker.c)
    target_include_directories(tutti-bench-${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_include_directories(tutti-bench-${name} SYSTEM PRIVATE ${includes})
    target_link_libraries(tutti-bench-${name} PRIVATE tutti_flags ${libraries})
    add_dependencies(tutti_rivals tutti-bench-${name})
endfunction()

set(environments ${PROJECT_SOURCE_DIR}/.rivals)
rival_mpi(openmpi mpicc.openmpi --showme:compile --showme:link)
rival_mpi(mpich mpicc.mpich -compile_info -link_info)
rival_mpi(openmpi5 mpicc --showme:compile --showme:link ${environments}/openmpi/bin NO_DEFAULT_PATH)
rival_mpi(mpich5 mpicc -compile_info -link_info ${environments}/mpich/bin NO_DEFAULT_PATH)

find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
if(GLOO_INCLUDE_DIR AND GLOO_LIBRARY)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 14)
    add_executable(tutti-bench-gloo rival_gloo.cc rival_worker.c)
    target_link_libraries(tutti-bench-gloo PRIVATE tutti_flags tutti ${GLOO_LIBRARY} Threads::Threads)
    add_dependencies(tutti_rivals tutti-bench-gloo)
else()
    message(STATUS "rivals: gloo is not installed")
endif()

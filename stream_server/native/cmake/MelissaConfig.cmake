# find_package(Melissa): the target melissa, as codes that were instrumented for Melissa expect it. A project that has
# enabled C gets its MPI along with it.
include(CMakeFindDependencyMacro)
find_dependency(StreamClient CONFIG PATHS "${CMAKE_CURRENT_LIST_DIR}/../StreamClient" NO_DEFAULT_PATH)

get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT TARGET melissa)
    add_library(melissa INTERFACE IMPORTED)
    set_property(TARGET melissa PROPERTY INTERFACE_LINK_LIBRARIES StreamClient::melissa_api)
    if("C" IN_LIST languages)
        find_dependency(MPI COMPONENTS C)
        set_property(TARGET melissa APPEND PROPERTY INTERFACE_LINK_LIBRARIES MPI::MPI_C)
    endif()
endif()
get_target_property(MELISSA_INCLUDE_DIR StreamClient::melissa_api INTERFACE_INCLUDE_DIRECTORIES)
set(MELISSA_LIBRARY melissa)

# The target StreamClient::fortran: the Fortran module, compiled by the compiler of the project that uses it, since
# files of modules are of one compiler. It is there if that project has enabled Fortran.
get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if("Fortran" IN_LIST languages AND NOT TARGET stream_client_fortran AND EXISTS "${StreamClient_FORTRAN_SOURCE}")
    set(modules "${CMAKE_CURRENT_BINARY_DIR}/stream_client_modules")
    add_library(stream_client_fortran STATIC EXCLUDE_FROM_ALL "${StreamClient_FORTRAN_SOURCE}")
    set_target_properties(stream_client_fortran PROPERTIES
        Fortran_MODULE_DIRECTORY "${modules}" POSITION_INDEPENDENT_CODE ON)
    target_include_directories(stream_client_fortran INTERFACE "${modules}")
    target_link_libraries(stream_client_fortran PUBLIC StreamClient::stream_client)
    add_library(StreamClient::fortran ALIAS stream_client_fortran)
endif()

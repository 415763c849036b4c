# What a prefix gets: libraries, headers, the Fortran source, pkg-config files and a CMake package.
include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/StreamClient")
set(sources "${CMAKE_INSTALL_DATADIR}/stream_client")
set(modules stream_client)

install(TARGETS stream_client stream_client_static EXPORT StreamClientTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES include/stream_client.h include/stream_client_mpi.h include/stream_client.hpp
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(EXISTS "${StreamClient_FORTRAN_SOURCE}")
    install(FILES "${StreamClient_FORTRAN_SOURCE}" DESTINATION "${sources}")
endif()

if(STREAM_CLIENT_MELISSA)
    foreach(name ${melissa_targets})
        install(TARGETS stream_client_${name} EXPORT StreamClientTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    endforeach()
    install(FILES include/melissa_api.h include/melissa_api_no_mpi.h include/melissa_api.f include/melissa_api.f90
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(DIRECTORY include/melissa DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    foreach(language f f90)
        install(FILES include/melissa_api.${language} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/melissa"
                RENAME api.${language})
    endforeach()
    list(APPEND modules ${melissa_targets})
endif()

# The paths in the .pc files start at the file itself, so that `cmake --install --prefix` may choose any prefix.
file(RELATIVE_PATH pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
file(RELATIVE_PATH pc_include "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
file(RELATIVE_PATH pc_data "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_DATADIR}")
foreach(module ${modules})
    configure_file(${module}.pc.in ${module}.pc @ONLY)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${module}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()

configure_package_config_file(
    cmake/StreamClientConfig.cmake.in StreamClientConfig.cmake INSTALL_DESTINATION "${package}" PATH_VARS sources)
write_basic_package_version_file(StreamClientConfigVersion.cmake COMPATIBILITY SameMinorVersion)
if(TARGET stream_client_melissa_api)
    # Melissa's own names for the library and the package.
    set(link "${CMAKE_SHARED_LIBRARY_PREFIX}melissa${CMAKE_SHARED_LIBRARY_SUFFIX}")
    file(CREATE_LINK "${CMAKE_SHARED_LIBRARY_PREFIX}melissa_api${CMAKE_SHARED_LIBRARY_SUFFIX}"
         "${CMAKE_CURRENT_BINARY_DIR}/${link}" SYMBOLIC)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${link}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    file(STRINGS include/melissa/config.h melissa_version REGEX "define MELISSA_VERSION ")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" melissa_version "${melissa_version}")
    write_basic_package_version_file(
        MelissaConfigVersion.cmake VERSION ${melissa_version} COMPATIBILITY SameMajorVersion)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/MelissaConfigVersion.cmake" cmake/MelissaConfig.cmake
            DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/Melissa")
endif()
install(EXPORT StreamClientTargets NAMESPACE StreamClient:: DESTINATION "${package}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/StreamClientConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/StreamClientConfigVersion.cmake"
              cmake/StreamClientFortran.cmake cmake/ZeroMQ.cmake
        DESTINATION "${package}")

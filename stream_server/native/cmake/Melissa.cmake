# The targets StreamClient::melissa_api_no_mpi and, where there is an MPI for C, StreamClient::melissa_api.
#
# Neither passes MPI on: a code that calls melissa_init has its own.
find_package(MPI QUIET COMPONENTS C)

set(melissa_sources melissa/relay.c melissa/melissa_api_no_mpi.c)
set(melissa_targets melissa_api_no_mpi)
add_library(stream_client_melissa_api_no_mpi SHARED ${melissa_sources})
if(MPI_C_FOUND)
    list(APPEND melissa_targets melissa_api)
    add_library(stream_client_melissa_api SHARED ${melissa_sources} melissa/melissa_api.c)
    target_link_libraries(stream_client_melissa_api PRIVATE MPI::MPI_C)
    message(STATUS "Melissa's interface: with and without MPI (${MPI_C_COMPILER})")
else()
    message(STATUS "Melissa's interface: without MPI only, as no MPI for C was found (-DMPI_C_COMPILER=mpicc names one)")
endif()

foreach(name ${melissa_targets})
    stream_client_compile(stream_client_${name})
    target_link_libraries(stream_client_${name} PRIVATE stream_client)
    stream_client_name(stream_client_${name} ${name})
    stream_client_shared(stream_client_${name})
endforeach()

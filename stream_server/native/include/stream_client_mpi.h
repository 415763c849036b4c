/* stream_connect for MPI programs. The library itself knows no MPI, so that one build serves every MPI. */
#ifndef STREAM_CLIENT_MPI_H
#define STREAM_CLIENT_MPI_H

#include <mpi.h>

#include "stream_client.h"

/* Take part in a study as this process's rank of `comm`, which holds all ranks of one simulation and no others. */
static inline int stream_connect_mpi(stream_simulation **simulation, MPI_Comm comm) {
    int rank, num_ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &num_ranks);
    return stream_connect(simulation, rank, num_ranks);
}

#endif

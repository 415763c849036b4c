#include "melissa_api.h"

#include <stddef.h>

#include "relay.h"

/* MPI's own error handler would end the program: the duplicate of the communicator has one that returns. */
typedef struct {
    sc_group group;
    MPI_Comm comm;
} mpi_group;

static bool agree(sc_group *group, bool fine, int64_t size, int64_t *before, int64_t *total) {
    const MPI_Comm comm = ((mpi_group *)group)->comm;
    int64_t mine[2] = {size, fine ? 0 : 1}, sums[2] = {0, 1};
    *before = 0;
    int result = MPI_Exscan(mine, before, 1, MPI_INT64_T, MPI_SUM, comm);
    if (result == MPI_SUCCESS) result = MPI_Allreduce(mine, sums, 2, MPI_INT64_T, MPI_SUM, comm);
    if (result != MPI_SUCCESS) sc_relay_fail("MPI failed in melissa_init (error %d)", result);
    if (group->rank == 0) *before = 0; /* MPI leaves it undefined there */
    *total = sums[0];
    return result == MPI_SUCCESS && sums[1] == 0;
}

static void leave(sc_group *group) {
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (!is_over) MPI_Comm_free(&((mpi_group *)group)->comm);
}

static mpi_group processes = {.group = {.agree = agree, .leave = leave}, .comm = MPI_COMM_NULL};

/* The group of `comm`, or NULL after an error. */
static sc_group *joined(MPI_Comm comm) {
    int has_begun = 0, is_over = 0;
    MPI_Initialized(&has_begun);
    if (has_begun) MPI_Finalized(&is_over);
    if (!has_begun || is_over || comm == MPI_COMM_NULL) {
        sc_relay_fail(
            "melissa_init must be called between MPI_Init and MPI_Finalize, with the simulation's communicator");
        return NULL;
    }
    if (MPI_Comm_dup(comm, &processes.comm) != MPI_SUCCESS) {
        sc_relay_fail("MPI cannot duplicate the communicator that was passed to melissa_init");
        return NULL;
    }
    MPI_Comm_set_errhandler(processes.comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(processes.comm, &processes.group.rank);
    MPI_Comm_size(processes.comm, &processes.group.num_ranks);
    return &processes.group;
}

void melissa_init(const char *field_name, const int vect_size, MPI_Comm comm) {
    sc_group *group = sc_relay_group();
    if (group == NULL) group = joined(comm);
    if (group != NULL) sc_relay_init(field_name, vect_size, group);
}

void melissa_init_f(const char *field_name, int *local_vect_size, MPI_Fint *comm_fortran) {
    melissa_init(field_name, local_vect_size ? *local_vect_size : -1,
                 comm_fortran ? MPI_Comm_f2c(*comm_fortran) : MPI_COMM_NULL);
}

void melissa_send(const char *field_name, const double *send_vect) {
    sc_relay_send(field_name, send_vect);
}

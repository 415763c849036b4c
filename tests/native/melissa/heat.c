/* A code instrumented for Melissa: C with MPI, three fields, one of which is sent at every other step by rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <melissa_api.h>

#define NUM_CELLS 13
#define NUM_ROWS 6
#define NUM_COLUMNS 4

/* First and number of the items of this rank. */
static void load(int rank, int num_ranks, int num_items, int *first, int *num) {
    *first = rank * num_items / num_ranks;
    *num = (rank + 1) * num_items / num_ranks - *first;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc < 2) {
        fprintf(stderr, "usage: heatc INITIAL\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const double initial = strtod(argv[1], NULL);

    /* Simulations of a group share MPI_COMM_WORLD. */
    void *attribute = NULL;
    int is_set = 0, appnum = 0, me, np;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &attribute, &is_set);
    if (is_set) memcpy(&appnum, attribute, sizeof appnum);
    MPI_Comm comm;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_split(MPI_COMM_WORLD, appnum, me, &comm);
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &np);

    int first_cell, num_cells, first_row, num_rows;
    load(me, np, NUM_CELLS, &first_cell, &num_cells);
    load(me, np, NUM_ROWS, &first_row, &num_rows);
    double *u = malloc(NUM_CELLS * sizeof *u), *flux = malloc(NUM_ROWS * NUM_COLUMNS * sizeof *flux), energy;

    melissa_init("heat", num_cells, comm);
    melissa_init("heat_flux", num_rows * NUM_COLUMNS, comm);
    melissa_init("energy", me == 0 ? 1 : 0, comm);
    for (int n = 1; n <= 9; ++n) {
        energy = initial + 1000.0 * n;
        for (int i = 0; i < num_cells; ++i) u[i] = initial + 1000.0 * n + (first_cell + i);
        for (int i = 0; i < num_rows * NUM_COLUMNS; ++i) flux[i] = -(energy + (first_row * NUM_COLUMNS + i));
        melissa_send("heat", u);
        melissa_send("heat_flux", flux);
        if (n % 2 == 0) melissa_send("energy", &energy);
    }
    melissa_finalize();

    free(u);
    free(flux);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}

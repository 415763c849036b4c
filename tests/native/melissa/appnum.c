/* A code of one process that takes for granted that MPI_APPNUM is set, as every mpirun does. */
#include <melissa_api.h>
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    static double u[13], flux[24];
    const double initial = argc > 1 ? strtod(argv[1], NULL) : 0.0;
    int *appnum = NULL, is_set, me;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &is_set);
    MPI_Comm_split(MPI_COMM_WORLD, *appnum, me, &comm);

    melissa_init("heat", 13, comm);
    melissa_init("heat_flux", 24, comm);
    for (int n = 1; n <= 9; ++n) {
        for (int i = 0; i < 13; ++i) u[i] = initial + 1000.0 * n + i;
        for (int i = 0; i < 24; ++i) flux[i] = -(initial + 1000.0 * n + i);
        melissa_send("heat", u);
        melissa_send("heat_flux", flux);
    }
    melissa_finalize();
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}

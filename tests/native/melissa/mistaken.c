/* A code that makes one mistake, named on its command line, and goes on. */
#include <melissa_api.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static double values[32];
    int me, np;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    const char *mistake = argc > 1 ? argv[1] : "";
    const int last = me == np - 1;

    if (strcmp(mistake, "early") == 0) melissa_send("heat", values);
    if (strcmp(mistake, "name") == 0) melissa_init(last ? "cold" : "heat", 5, MPI_COMM_WORLD);
    if (strcmp(mistake, "size") == 0) melissa_init("heat", last ? -1 : 5, MPI_COMM_WORLD);
    if (strcmp(mistake, "total") == 0) melissa_init("heat", 5, MPI_COMM_WORLD);
    if (strcmp(mistake, "rows") == 0) melissa_init("heat_flux", last ? 14 : 10, MPI_COMM_WORLD);
    if (strcmp(mistake, "twice") == 0) {
        melissa_init("heat", last ? 3 : 10, MPI_COMM_WORLD);
        melissa_init("heat", last ? 10 : 3, MPI_COMM_WORLD);
    }
    if (strcmp(mistake, "alike") == 0) {
        melissa_init("heat", last ? 3 : 10, MPI_COMM_WORLD);
        melissa_init("heat_X", last ? 3 : 10, MPI_COMM_WORLD);
    }
    if (strcmp(mistake, "component") == 0) melissa_init("heat[X]", last ? 3 : 10, MPI_COMM_WORLD);
    if (strcmp(mistake, "never") == 0) melissa_init("heat", last ? 3 : 10, MPI_COMM_WORLD);
    if (strcmp(mistake, "other") == 0) {
        melissa_init("heat", last ? 3 : 10, MPI_COMM_WORLD);
        melissa_send("heat_flux", values);
    }
    if (strcmp(mistake, "required") == 0) {
        melissa_init("heat", last ? 3 : 10, MPI_COMM_WORLD);
        melissa_init("heat_flux", 12, MPI_COMM_WORLD);
        melissa_send("heat", values);
        melissa_send("heat", values);
    }
    for (int n = 0; n < 3; ++n) melissa_send("heat", values);
    melissa_finalize();

    printf("rank %d is done\n", me);
    MPI_Finalize();
    return 0;
}

/* A code instrumented for Melissa: C without MPI. */
#include <stdio.h>
#include <stdlib.h>

#include <melissa_api_no_mpi.h>

int main(int argc, char **argv) {
    static double u[13], flux[24];
    const double initial = argc > 1 ? strtod(argv[1], NULL) : 0.0;

    printf("Melissa %s\n", melissa_version());
    melissa_init_no_mpi("heat", 13);
    melissa_init_no_mpi("heat_flux", 24);
    for (int n = 1; n <= 9; ++n) {
        for (int i = 0; i < 13; ++i) u[i] = initial + 1000.0 * n + i;
        for (int i = 0; i < 24; ++i) flux[i] = -(initial + 1000.0 * n + i);
        melissa_send_no_mpi("heat_flux", flux);
        melissa_send_no_mpi("heat", u);
    }
    melissa_finalize();
    melissa_finalize();
    return 0;
}

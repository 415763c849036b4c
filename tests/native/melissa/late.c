/* A code that initialises each field of a step just before it sends it: the components of a vector, by the names on
 * its command line; with "once" before them in the first step only. */
#include <melissa/api.h>
#include <mpi.h>
#include <string.h>

int main(int argc, char **argv) {
    const int is_once = strcmp(argv[1], "once") == 0;
    char **names = argv + 1 + is_once;
    int me, np;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    const int num = 12 / np;

    for (int n = 0; n < 3; ++n) {
        for (int component = 0; component < 3; ++component) {
            double values[12];
            for (int i = 0; i < num; ++i) values[i] = 100.0 * n + 1000.0 * component + (me * num + i);
            if (!is_once || n == 0) melissa_init(names[component], num, MPI_COMM_WORLD);
            melissa_send(names[component], values);
        }
    }
    melissa_finalize();
    MPI_Finalize();
    return 0;
}

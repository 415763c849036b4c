/* Fields of several types and shapes, each of which goes to the server and, as raw bytes, into a file.
 *
 *     fields FOLDER
 *
 * With -DWITH_MPI on three ranks, whose parts are uneven; some ranks have none of a field, or do not know of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef WITH_MPI
#include "stream_client_mpi.h"
#else
#include "stream_client.h"
#endif

enum { NUM_STEPS = 12, FIRST = 5, EVERY = 10, NK = 3, NJ = 5, NI = 2, NY = 2, NX = 7, NUM_CELLS = 4 };

/* The parts of the middle axis of the pressure, of the last one of the velocity, and of the cells. */
static const int64_t pressure_cuts[] = {0, 3, 5, 5}, velocity_cuts[] = {0, 4, 6, 7}, cell_cuts[] = {0, 1, 1, 4};

static float pressure[NK][NJ][NI];
static double velocity[NY][NX], energy;
static int32_t cells[NUM_CELLS];

static void fill(double offset, double slope, int64_t id, int step) {
    for (int i = 0; i < NK * NJ * NI; ++i)
        pressure[i / (NJ * NI)][i / NI % NJ][i % NI] = (float)sin(offset + slope * i + 0.1 * step);
    for (int i = 0; i < NY * NX; ++i) velocity[i / NX][i % NX] = exp(offset * i - slope * step);
    for (int i = 0; i < NUM_CELLS; ++i) cells[i] = (int32_t)(1000 * id + 10 * step + i);
    energy = cos(offset + slope * step);
    /* Zero with a sign, and numbers that are not normal: a conversion on the way would change them. */
    pressure[0][step % NJ][0] = -0.0f;
    pressure[1][step % NJ][1] = 1e-40f;
    velocity[1][step % NX] = 5e-324;
}

static void write_part(FILE *file, const void *data, size_t size, const int64_t count[3], const int64_t stride[3]) {
    for (int64_t k = 0; k < count[0]; ++k)
        for (int64_t j = 0; j < count[1]; ++j)
            for (int64_t i = 0; i < count[2]; ++i)
                fwrite((const char *)data + size * (size_t)(k * stride[0] + j * stride[1] + i * stride[2]), size, 1,
                       file);
}

static int64_t length(const int64_t cuts[], int rank, int num_ranks) {
    return num_ranks == 1 ? cuts[3] : cuts[rank + 1] - cuts[rank];
}

static void check(int result, const stream_simulation *simulation) {
    if (result < 0) {
        fprintf(stderr, "%s\n", stream_error(simulation));
        abort();
    }
}

int main(int num_arguments, char *arguments[]) {
    const int64_t pressure_shape[] = {NK, NJ, NI}, velocity_shape[] = {NY, NX}, cells_shape[] = {NUM_CELLS};
    const int64_t pressure_strides[] = {NJ * NI, NI, 1}, velocity_strides[] = {NX, 1};
    int rank = 0, num_ranks = 1;
    double offset = 0, slope = 0;
    stream_simulation *simulation;
    char path[4096];

    if (num_arguments != 2)
        return 1;
#ifdef WITH_MPI
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    check(stream_connect_mpi(&simulation, MPI_COMM_WORLD), NULL);
#else
    check(stream_connect(&simulation, 0, 1), NULL);
#endif
    check(stream_parameter(simulation, "offset", &offset), simulation);
    check(stream_parameter(simulation, "slope", &slope), simulation);
    const int64_t j = pressure_cuts[rank], x = velocity_cuts[rank], cell = cell_cuts[rank];
    const int64_t pressure_offset[] = {0, j, 0}, velocity_offset[] = {0, x};
    const int64_t pressure_count[] = {NK, length(pressure_cuts, rank, num_ranks), NI};
    const int64_t velocity_count[] = {NY, length(velocity_cuts, rank, num_ranks)};
    const int64_t num_cells = length(cell_cuts, rank, num_ranks);
    check(stream_declare_field(simulation, "pressure", STREAM_FLOAT32, 3, pressure_shape, pressure_offset,
                               pressure_count),
          simulation);
    check(stream_declare_field(simulation, "velocity", STREAM_FLOAT64, 2, velocity_shape, velocity_offset,
                               velocity_count),
          simulation);
    check(stream_declare_field(simulation, "cells", STREAM_INT32, 1, cells_shape, &cell, &num_cells), simulation);
    if (rank == 0)
        check(stream_declare_field(simulation, "energy", STREAM_FLOAT64, 0, NULL, NULL, NULL), simulation);

    snprintf(path, sizeof path, "%s/%d.%d.raw", arguments[1], (int)stream_id(simulation), rank);
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return 1;
    for (int step = 0; step < NUM_STEPS; ++step) {
        fill(offset, slope, stream_id(simulation), step);
        write_part(file, &pressure[0][j][0], sizeof(float), pressure_count, pressure_strides);
        write_part(file, &velocity[0][x], sizeof(double), (int64_t[]){1, NY, velocity_count[1]}, (int64_t[]){0, NX, 1});
        write_part(file, &cells[cell], sizeof(int32_t), (int64_t[]){1, 1, num_cells}, (int64_t[]){0, 0, 1});
        if (pressure_count[1] > 0)
            check(stream_put_strided(simulation, "pressure", &pressure[0][j][0], pressure_strides), simulation);
        check(stream_put_strided(simulation, "velocity", &velocity[0][x], velocity_strides), simulation);
        if (num_cells > 0)
            check(stream_put(simulation, "cells", &cells[cell]), simulation);
        if (rank == 0) {
            fwrite(&energy, sizeof energy, 1, file);
            check(stream_put(simulation, "energy", &energy), simulation);
        }
        check(stream_send(simulation, FIRST + EVERY * step), simulation);
    }
    fclose(file);
    check(stream_finish(&simulation), NULL);
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return 0;
}

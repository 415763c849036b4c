/* The simulation of tests/study/mpi_study/decomposed.py in C, on two ranks.
 *
 *     decomposed [kill|wait SIMULATION FILE]
 *
 * Rank 0 waits for the file; the other has sent its part of the step then, and waits for rank 0.
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stream_client_mpi.h"

enum { NUM_STEPS = 20, STEP = 10, NY = 5, NX = 7, NK = 3, NJ = 4, NI = 5, NUM_PLACES = 8 };

static double plane[NY][NX], volume[NK][NJ][NI], places[NUM_PLACES];

/* Ranks cut the last axis; the first one has the longer part. */
static void cut(int64_t length, int rank, int64_t *offset, int64_t *count) {
    int64_t first = (length + 1) / 2;
    *offset = rank == 0 ? 0 : first;
    *count = rank == 0 ? first : length - first;
}

static void fill(double offset, double slope, int step) {
    for (int i = 0; i < NUM_PLACES; ++i) places[i] = offset + slope * i / NUM_PLACES + (double)step / NUM_STEPS;
    for (int i = 0; i < NY * NX; ++i) plane[i / NX][i % NX] = i + places[0] + 1000.0 * step;
    for (int i = 0; i < NK * NJ * NI; ++i) volume[i / (NJ * NI)][i / NI % NJ][i % NI] = i - places[0] - 1000.0 * step;
}

static void be_troubled(char *arguments[], const stream_simulation *simulation, int rank, int step) {
    int victim = atoi(arguments[2]);
    if (step != STEP || (victim != -1 && victim != stream_id(simulation)))
        return;
    if (strcmp(arguments[1], "kill") == 0 && rank == 1 && stream_attempt(simulation) == 0)
        raise(SIGKILL);
    if (strcmp(arguments[1], "wait") != 0 || rank != 0)
        return;
    printf("waiting\n");
    fflush(stdout);
    while (access(arguments[3], F_OK) != 0) nanosleep(&(struct timespec){0, 10000000}, NULL);
}

/* Only the whole arrays are there, and each rank sends its part of them. */
static int send_step(stream_simulation *simulation, int64_t x, int64_t i, int64_t place, int step) {
    const int64_t plane_strides[] = {NX, 1}, volume_strides[] = {NJ * NI, NI, 1};
    stream_put_strided(simulation, "plane", &plane[0][x], plane_strides);
    stream_put_strided(simulation, "volume", &volume[0][0][i], volume_strides);
    stream_put(simulation, "signal", &places[place]);
    return stream_send(simulation, step);
}

int main(int num_arguments, char *arguments[]) {
    const int64_t plane_shape[] = {NY, NX}, volume_shape[] = {NK, NJ, NI}, num_places = NUM_PLACES;
    int64_t plane_offset[2] = {0}, plane_count[2] = {NY}, volume_offset[3] = {0}, volume_count[3] = {NK, NJ};
    int64_t place, places_count;
    double offset = 0, slope = 0;
    int rank, result, agreed = STREAM_OK;
    stream_simulation *simulation;

    MPI_Init(&num_arguments, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (stream_connect_mpi(&simulation, MPI_COMM_WORLD) < 0) {
        fprintf(stderr, "%s\n", stream_error(NULL));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    stream_parameter(simulation, "offset", &offset);
    stream_parameter(simulation, "slope", &slope);
    cut(NX, rank, &plane_offset[1], &plane_count[1]);
    cut(NI, rank, &volume_offset[2], &volume_count[2]);
    cut(NUM_PLACES, rank, &place, &places_count);
    stream_declare_field(simulation, "plane", STREAM_FLOAT64, 2, plane_shape, plane_offset, plane_count);
    stream_declare_field(simulation, "volume", STREAM_FLOAT64, 3, volume_shape, volume_offset, volume_count);
    stream_declare_field(simulation, "signal", STREAM_FLOAT64, 1, &num_places, &place, &places_count);
    for (int step = 0; step < NUM_STEPS && agreed == STREAM_OK; ++step) {
        if (num_arguments > 3)
            be_troubled(arguments, simulation, rank, step);
        fill(offset, slope, step);
        result = send_step(simulation, plane_offset[1], volume_offset[2], place, step);
        if (result < 0) {
            fprintf(stderr, "%s\n", stream_error(simulation));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Allreduce(&result, &agreed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    result = stream_finish(&simulation);
    MPI_Finalize();
    return result < 0;
}

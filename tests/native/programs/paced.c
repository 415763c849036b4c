/* The simulation of tests/study/numpy_study/paced.py in C.
 *
 *     paced SECONDS
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stream_client.h"

enum { NUM_STEPS = 20, NUM_PLACES = 8 };

static void pause_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&left, NULL);
}

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    double offset, slope, signal[NUM_PLACES];
    const int64_t shape[] = {NUM_PLACES};
    int code = stream_connect(&simulation, 0, 1);
    if (code == STREAM_OK)
        code = stream_parameter(simulation, "offset", &offset);
    if (code == STREAM_OK)
        code = stream_parameter(simulation, "slope", &slope);
    if (code == STREAM_OK)
        code = stream_declare_field(simulation, "signal", STREAM_FLOAT64, 1, shape, NULL, NULL);
    for (int step = 0; step < NUM_STEPS && code == STREAM_OK; ++step) {
        for (int i = 0; i < NUM_PLACES; ++i)
            signal[i] = offset + slope * i / NUM_PLACES + (double)step / NUM_STEPS;
        pause_for(num_arguments > 1 ? atof(arguments[1]) : 0);
        code = stream_put(simulation, "signal", signal);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    if (code < 0) {
        fprintf(stderr, "%s\n", stream_error(simulation));
        stream_abandon(&simulation);
        return 1;
    }
    return stream_finish(&simulation) < 0;
}

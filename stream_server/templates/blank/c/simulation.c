/* One simulation of the study. `STREAM_CONNECTION=none build/simulation` runs it alone. */

#include <math.h>
#include <stdio.h>
#include <stream_client.h>

#define NUM_STEPS 50
#define NUM_NODES 64

/* The field after a time step. This is the place of your solver. */
static void solve(double *u, int step, double amplitude, double rate) {
    for (int i = 0; i < NUM_NODES; ++i) {
        u[i] = amplitude * exp(-rate * step / NUM_STEPS) * sin(6.283185307179586 * i / (NUM_NODES - 1));
    }
}

int main(void) {
    const int64_t shape[] = {NUM_NODES};
    double u[NUM_NODES];
    double amplitude = 1.0, rate = 1.0; /* stay as they are without a study */
    int result = STREAM_OK;
    stream_simulation *simulation;

    /* Rank 0 of 1: a parallel code says here which of its ranks this is. */
    if (stream_connect(&simulation, 0, 1) < 0) {
        fprintf(stderr, "%s\n", stream_error(NULL));
        return 1;
    }
    stream_parameter(simulation, "amplitude", &amplitude);
    stream_parameter(simulation, "rate", &rate);
    stream_declare_field(simulation, "u", STREAM_FLOAT64, 1, shape, NULL, NULL);
    /* STREAM_STOP ends the loop, too: the study needs no more. */
    for (int step = 0; step < NUM_STEPS && result == STREAM_OK; ++step) {
        solve(u, step, amplitude, rate);
        stream_put(simulation, "u", u);
        result = stream_send(simulation, step);
    }
    if (result < 0) {
        fprintf(stderr, "%s\n", stream_error(simulation));
        stream_abandon(&simulation);
        return 1;
    }
    return stream_finish(&simulation) < 0;
}

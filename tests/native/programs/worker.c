/* Computes one simulation after another, of 20 steps with 8 values each, which take as many milliseconds as the
 * argument says. One that is stopped early is followed by the next. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stream_client.h"

int main(int argc, char **argv) {
    const struct timespec step_time = {.tv_nsec = argc > 1 ? atol(argv[1]) * 1000000 : 0};
    const int64_t count[] = {8};
    stream_simulation *simulation;
    int code = stream_connect(&simulation, 0, 1);
    while (code == STREAM_OK) {
        double offset = 0, values[8];
        code = stream_parameter(simulation, "offset", &offset);
        for (int i = 0; i < 8; ++i)
            values[i] = offset;
        printf("%lld\n", (long long)stream_id(simulation));
        for (int step = 0; step < 20 && code == STREAM_OK; ++step) {
            code = stream_put_array(simulation, "signal", STREAM_FLOAT64, 1, count, NULL, values);
            nanosleep(&step_time, NULL);
            if (code == STREAM_OK)
                code = stream_send(simulation, step);
        }
        if (code >= 0)
            code = stream_next(simulation);
    }
    if (code < 0)
        fprintf(stderr, "%s\n", stream_error(simulation));
    int left = stream_finish(&simulation);
    return code < 0 || left < 0;
}

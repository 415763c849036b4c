/* Computes one simulation after another, of 20 steps with 8 values each. */
#include <stdio.h>

#include "stream_client.h"

int main(void) {
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
            if (code == STREAM_OK)
                code = stream_send(simulation, step);
        }
        if (code == STREAM_OK)
            code = stream_next(simulation);
    }
    if (code < 0)
        fprintf(stderr, "%s\n", stream_error(simulation));
    int left = stream_finish(&simulation);
    return code < 0 || left < 0;
}

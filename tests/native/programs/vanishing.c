/* Sends a field of four numbers again and again, in which at last only a small one is left.
 *
 *     vanishing CONNECTION SMALL
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream_client.h"

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    if (num_arguments != 3)
        return 2;
    options.connection = arguments[1];
    double small = atof(arguments[2]);
    const double samples[][8] = {{0}, {1, 0, small, 0}, {0, 1, 0, 1, small, 1}, {0, 0, small}, {0, small}};
    const int64_t count[] = {4}, strides[] = {2};
    int code = stream_connect_with(&simulation, 0, 1, &options);
    for (int step = 0; step < 5 && code == STREAM_OK; ++step) {
        code = stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, step == 2 ? strides : NULL, samples[step]);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    return code == STREAM_OK && stream_finish(&simulation) == STREAM_OK ? 0 : 1;
}

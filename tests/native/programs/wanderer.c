/* Takes part by a relative path, and leaves its folder. Finishes when its input ends.
 *
 *     wanderer CONNECTION
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <unistd.h>

#include "stream_client.h"

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    const int64_t count[] = {4};
    const double values[4] = {1, 2, 3, 4};
    options.connection = num_arguments > 1 ? arguments[1] : NULL;
    int code = stream_connect_with(&simulation, 0, 1, &options);
    if (code == STREAM_OK && chdir("/") != 0)
        return 2;
    if (code == STREAM_OK)
        code = stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values);
    if (code == STREAM_OK)
        code = stream_send(simulation, 0);
    while (getchar() != EOF)
        ;
    if (code == STREAM_OK)
        code = stream_finish(&simulation);
    if (code != STREAM_OK)
        fprintf(stderr, "%s\n", stream_error(simulation));
    return code != STREAM_OK;
}

/* Sends one step and ends without a word.
 *
 *     forgetful CONNECTION
 */
#include <stddef.h>

#include "stream_client.h"

int main(int num_arguments, char *arguments[]) {
    static stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    const int64_t count[] = {4};
    const double values[4] = {0};
    options.connection = num_arguments > 1 ? arguments[1] : NULL;
    if (stream_connect_with(&simulation, 0, 1, &options) != STREAM_OK)
        return 1;
    if (stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values) != STREAM_OK)
        return 1;
    return stream_send(simulation, 0);
}

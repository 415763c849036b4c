/* Looks at no result.
 *
 *     careless CONNECTION shape|name|nothing|parameter
 *
 * Declares the field "u" with a wrong shape, a field of another name, or none, or asks for a parameter that there is
 * not.
 */
#include <stdio.h>
#include <string.h>

#include "stream_client.h"

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    double stiffness = 1;
    const double values[5] = {0};
    if (num_arguments < 3)
        return 2;
    const char *mistake = arguments[2];
    const int64_t shape[] = {strcmp(mistake, "parameter") == 0 ? 4 : 5};
    const char *name = strcmp(mistake, "name") == 0 ? "temperature" : "u";
    options.connection = arguments[1];
    stream_connect_with(&simulation, 0, 1, &options);
    if (strcmp(mistake, "parameter") == 0)
        stream_parameter(simulation, "stifness", &stiffness);
    if (strcmp(mistake, "nothing") != 0)
        stream_declare_field(simulation, name, STREAM_FLOAT64, 1, shape, NULL, NULL);
    for (int64_t step = 0; step < 3; ++step) {
        stream_put(simulation, name, values);
        stream_send(simulation, step);
    }
    stream_finish(&simulation);
    puts("done");
    return 0;
}

/* Two threads call the functions of one simulation, until that is noticed.
 *
 *     shared CONNECTION
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stream_client.h"

enum { DEADLINE_S = 60 };

static int put(stream_simulation *simulation) {
    const int64_t count[] = {4};
    const double values[4] = {0};
    return stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values);
}

static int is_told(int code, const char *text) {
    return code == STREAM_ERROR_ARGUMENT && strstr(text, "used by two threads at once") != NULL;
}

static void *put_again_and_again(void *simulation) {
    static char went_wrong;
    int code;
    do
        code = put(simulation);
    while (code == STREAM_OK);
    return is_told(code, stream_error(simulation)) ? NULL : &went_wrong;
}

/* The number of the first thing that is wrong, or 0. */
int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    pthread_t thread;
    void *went_wrong;
    alarm(DEADLINE_S);
    options.connection = num_arguments > 1 ? arguments[1] : NULL;
    int code = stream_connect_with(&simulation, 0, 1, &options);
    if (code == STREAM_OK)
        code = put(simulation);
    if (code == STREAM_OK)
        code = stream_send(simulation, 0);
    if (code != STREAM_OK || pthread_create(&thread, NULL, put_again_and_again, simulation) != 0)
        return 1;
    for (int64_t step = 1; code == STREAM_OK; ++step) {
        code = put(simulation);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    pthread_join(thread, &went_wrong);
    if (went_wrong != NULL)
        return 2;
    if (!is_told(code, stream_error(simulation)))
        return 3;
    return is_told(stream_finish(&simulation), stream_error(NULL)) && simulation == NULL ? 0 : 4;
}

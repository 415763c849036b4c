/* Takes part, and forks: the children can do nothing with the simulation but leave, the parent finishes it.
 *
 *     forked CONNECTION
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stream_client.h"

enum { DEADLINE_S = 20 };

static int is_refused(int code, const char *text) {
    return code == STREAM_ERROR_ARGUMENT && strstr(text, "process that connected it") != NULL;
}

/* The number of the first thing that is wrong, or 0. */
static int be_a_child(stream_simulation *simulation, int (*leave)(stream_simulation **), int code_of_leaving) {
    const int64_t count[] = {4};
    const double values[4] = {0};
    int code = stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values);
    if (!is_refused(code, stream_error(simulation)))
        return 1;
    if (!is_refused(stream_send(simulation, 1), stream_error(simulation)))
        return 2;
    if (!is_refused(stream_invalidate(simulation, "diverged"), stream_error(simulation)))
        return 3;
    if (!is_refused(stream_next(simulation), stream_error(simulation)))
        return 4;
    if (stream_id(simulation) != 7)
        return 5;
    code = leave(&simulation);
    if (code != code_of_leaving || simulation != NULL)
        return 6;
    return code == STREAM_OK || is_refused(code, stream_error(NULL)) ? 0 : 7;
}

static int run_child(stream_simulation *simulation, int (*leave)(stream_simulation **), int code_of_leaving) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(DEADLINE_S);
        _exit(be_a_child(simulation, leave, code_of_leaving));
    }
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static int send_step(stream_simulation *simulation, int64_t step) {
    const int64_t count[] = {4};
    const double values[4] = {0};
    int code = stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values);
    return code == STREAM_OK ? stream_send(simulation, step) : code;
}

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    options.connection = num_arguments > 1 ? arguments[1] : NULL;
    int code = stream_connect_with(&simulation, 0, 1, &options);
    if (code == STREAM_OK)
        code = send_step(simulation, 0);
    printf("%d\n", run_child(simulation, stream_finish, STREAM_ERROR_ARGUMENT));
    printf("%d\n", run_child(simulation, stream_abandon, STREAM_OK));
    if (code == STREAM_OK)
        code = send_step(simulation, 1);
    if (code == STREAM_OK)
        code = stream_finish(&simulation);
    if (code != STREAM_OK)
        fprintf(stderr, "%s\n", stream_error(simulation));
    return code != STREAM_OK;
}

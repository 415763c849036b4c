/* Sends steps while a signal comes every millisecond, which interrupts whatever the system is asked to do.
 *
 *     interrupted CONNECTION NUM_STEPS
 */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#include "stream_client.h"

static volatile sig_atomic_t num_signals;

static void count(int signal) {
    (void)signal;
    ++num_signals;
}

static void be_interrupted(void) {
    struct sigaction action = {.sa_handler = count};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    const int64_t shape[] = {4};
    if (num_arguments < 3)
        return 2;
    options.connection = arguments[1];
    be_interrupted();
    int code = stream_connect_with(&simulation, 0, 1, &options);
    if (code == STREAM_OK)
        code = stream_declare_field(simulation, "u", STREAM_FLOAT64, 1, shape, NULL, NULL);
    for (int64_t step = 0; step < atoll(arguments[2]) && code == STREAM_OK; ++step) {
        double values[4] = {(double)step, 1, 2, 3};
        code = stream_put(simulation, "u", values);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    if (code != STREAM_OK)
        fprintf(stderr, "%d: %s\n", code, stream_error(simulation));
    if (stream_finish(&simulation) != STREAM_OK)
        fprintf(stderr, "finish: %s\n", stream_error(NULL));
    printf("%s\n", num_signals > 0 ? "interrupted" : "undisturbed");
    return code != STREAM_OK;
}

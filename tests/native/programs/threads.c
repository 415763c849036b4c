/* Several simulations at once, each in its own thread.
 *
 *     threads CONNECTION NUM_THREADS NUM_STEPS
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "stream_client.h"

enum { MAX_THREADS = 16 };

static const char *connection;
static int64_t num_steps;

/* NULL if all went well. */
static void *run(void *number) {
    static char went_wrong;
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    options.connection = connection;
    options.simulation_id = *(int *)number;
    int code = stream_connect_with(&simulation, 0, 1, &options);
    for (int64_t step = 0; step < num_steps && code == STREAM_OK; ++step) {
        int64_t count[] = {4};
        double values[4] = {(double)options.simulation_id, (double)step, 0, 0};
        code = stream_put_array(simulation, "u", STREAM_FLOAT64, 1, count, NULL, values);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    if (code == STREAM_OK)
        code = stream_finish(&simulation);
    if (code != STREAM_OK)
        fprintf(stderr, "%lld: %s\n", (long long)options.simulation_id, stream_error(simulation));
    return code == STREAM_OK ? NULL : &went_wrong;
}

int main(int num_arguments, char *arguments[]) {
    pthread_t threads[MAX_THREADS];
    int numbers[MAX_THREADS], num_wrong = 0;
    int num_threads = num_arguments > 3 ? atoi(arguments[2]) : 0;
    if (num_threads < 1 || num_threads > MAX_THREADS)
        return 2;
    connection = arguments[1];
    num_steps = atoll(arguments[3]);
    for (int i = 0; i < num_threads; ++i) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, run, &numbers[i]) != 0)
            return 2;
    }
    for (int i = 0; i < num_threads; ++i) {
        void *result;
        pthread_join(threads[i], &result);
        num_wrong += result != NULL;
    }
    return num_wrong;
}

/* Takes part in a study whose server refuses its key before a connection is known to have been begun.
 *
 *     refused CONNECTION TIMEOUT_S
 *
 * Linked with --wrap=zmq_connect. Prints what it is told.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "stream_client.h"

int __real_zmq_connect(void *socket, const char *address);
int __wrap_zmq_connect(void *socket, const char *address);

int __wrap_zmq_connect(void *socket, const char *address) {
    const struct timespec handshake = {.tv_nsec = 300 * 1000 * 1000};
    int status = __real_zmq_connect(socket, address);
    nanosleep(&handshake, NULL);
    return status;
}

int main(int num_arguments, char *arguments[]) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    if (num_arguments < 3)
        return 2;
    options.connection = arguments[1];
    options.timeout_s = atof(arguments[2]);
    int code = stream_connect_with(&simulation, 0, 1, &options);
    printf("%d %s\n", code, stream_error(NULL));
    return code == STREAM_OK;
}

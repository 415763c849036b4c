/* Has as many connections as ZeroMQ allows by default, and more; and then as many as there may be files.
 *
 *     sockets
 *
 * Prints why the last one was not to be had.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <sys/resource.h>

#include "../../../stream_server/native/src/transport.h"

/* More than 1023 sockets, and with their ZeroMQ's connections, which come and go. */
enum { NUM_SERVER_RANKS = 1100, NUM_FILES = 4000 };

static int connect_to_all(sc_transport *transport, sc_error *error) {
    char address[] = "tcp://127.0.0.1:9", *all[] = {address};
    sc_addresses addresses = {1, all};
    int code = STREAM_OK;
    while (transport->num < transport->capacity && code == STREAM_OK)
        code = sc_transport_connect(transport, &addresses, NULL, false, error);
    return code;
}

static int set_files(rlim_t num) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = num;
    return setrlimit(RLIMIT_NOFILE, &files);
}

int main(void) {
    char node[] = "elsewhere";
    sc_connection_file file = {.host = node};
    sc_transport transport;
    sc_error error = {.code = STREAM_OK};
    if (set_files(NUM_FILES) != 0)
        return 2;
    void *context = sc_context_new(&error);
    int code = context == NULL ? error.code : sc_transport_open(&transport, context, &file, NUM_SERVER_RANKS, &error);
    if (code == STREAM_OK)
        code = connect_to_all(&transport, &error);
    if (code != STREAM_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    sc_transport_close(&transport, false);
    set_files(64);
    if (sc_transport_open(&transport, context, &file, NUM_SERVER_RANKS, &error) == STREAM_OK)
        printf("%d %s\n", connect_to_all(&transport, &error), error.text);
    sc_transport_close(&transport, false);
    sc_context_close(context);
    return 0;
}

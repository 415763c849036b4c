#define _POSIX_C_SOURCE 200809L
#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include "address.h"
#include "text.h"

#define LINGER_MS 2000
#define LONGEST_WAIT_S 3600.0
/* The descriptors of ZeroMQ's threads and a first socket, without which it ends the process, and of its folder. */
#define NUM_FILES 9

static int fail(sc_error *error, const char *what) {
    if (errno == ENOMEM)
        return sc_no_memory(error);
    if (errno == EMFILE)
        return sc_fail(error, STREAM_ERROR_SYSTEM,
                       "%s: this process may not open more files (ulimit -n tells how many it may)", what);
    char text[SC_REASON_BYTES];
    return sc_fail(error, STREAM_ERROR_SYSTEM, "%s: %s", what, sc_zmq_reason(errno, text));
}

/* Whether this process may still open so many files; if not, errno tells why. */
static bool may_open(int num) {
    int descriptors[NUM_FILES], num_open = 0, reason = 0;
    for (; num_open < num && reason == 0; ++num_open) {
        descriptors[num_open] = open("/", O_RDONLY | O_CLOEXEC);
        if (descriptors[num_open] < 0)
            reason = errno;
    }
    while (num_open-- > 0)
        if (descriptors[num_open] >= 0)
            close(descriptors[num_open]);
    errno = reason;
    return reason != EMFILE && reason != ENFILE;
}

/* As many sockets as there may be files: each of them is one at least. ZeroMQ's own limit is 1023. */
static bool allow_sockets(void *context) {
    struct rlimit files;
    int num = zmq_ctx_get(context, ZMQ_SOCKET_LIMIT);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < (rlim_t)num)
        num = (int)files.rlim_cur;
    return zmq_ctx_set(context, ZMQ_MAX_SOCKETS, num) == 0;
}

void *sc_context_new(sc_error *error) {
    void *context = may_open(NUM_FILES) ? zmq_ctx_new() : NULL;
    if (context != NULL && allow_sockets(context))
        return context;
    fail(error, "ZeroMQ cannot be started");
    sc_context_close(context);
    return NULL;
}

void sc_context_close(void *context) {
    if (context == NULL)
        return;
    while (zmq_ctx_term(context) != 0 && errno == EINTR) {
    }
}

int sc_transport_open(sc_transport *transport, void *context, const sc_connection_file *file, int capacity,
                      sc_error *error) {
    *transport = (sc_transport){.context = context, .file = file, .capacity = capacity};
    transport->dealers = calloc((size_t)capacity, sizeof *transport->dealers);
    transport->items = calloc((size_t)capacity, sizeof(zmq_pollitem_t));
    if (transport->dealers == NULL || transport->items == NULL) {
        sc_transport_close(transport, false);
        return sc_no_memory(error);
    }
    return STREAM_OK;
}

void sc_transport_close(sc_transport *transport, bool linger) {
    int linger_ms = linger ? LINGER_MS : 0;
    for (int i = 0; i < transport->num; ++i)
        sc_dealer_close(&transport->dealers[i], linger_ms);
    transport->num = 0;
    free(transport->dealers);
    free(transport->items);
    transport->dealers = NULL;
    transport->items = NULL;
}

static bool set_number(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static bool set_key(void *socket, int option, const char key[41]) {
    return zmq_setsockopt(socket, option, key, 41) == 0;
}

static bool set_options(void *socket, const sc_connection_file *file, bool is_encrypted) {
    /* Credit bounds what can pile up, not a high-water mark: it counts steps, a mark would count parts. */
    if (!set_number(socket, ZMQ_LINGER, LINGER_MS) || !set_number(socket, ZMQ_SNDHWM, 0))
        return false;
    return !is_encrypted || (set_key(socket, ZMQ_CURVE_SERVERKEY, file->server_public_key) &&
                             set_key(socket, ZMQ_CURVE_PUBLICKEY, file->client_public_key) &&
                             set_key(socket, ZMQ_CURVE_SECRETKEY, file->client_secret_key));
}

static bool set_name(void *socket, const char *name) {
    return name == NULL || name[0] == '\0' || zmq_setsockopt(socket, ZMQ_ROUTING_ID, name, strlen(name)) == 0;
}

static int no_usable_address(const sc_addresses *addresses, sc_error *error) {
    char node[256], all[SC_ERROR_BYTES / 2];
    sc_node_name(node);
    sc_join_addresses(all, sizeof all, addresses, ", ");
    return sc_fail(error, STREAM_ERROR_UNREACHABLE, "none of the server's addresses can be used from %s: %s", node,
                   all);
}

int sc_transport_connect(sc_transport *transport, const sc_addresses *addresses, const char *name, bool heeds_refusals,
                         sc_error *error) {
    const sc_connection_file *file = transport->file;
    const char *usable = sc_usable_address(addresses, sc_is_this_node(file->host));
    if (usable == NULL)
        return no_usable_address(addresses, error);
    sc_dealer *dealer = &transport->dealers[transport->num];
    dealer->socket = zmq_socket(transport->context, ZMQ_DEALER);
    if (dealer->socket == NULL)
        return fail(error, "ZeroMQ has no socket left");
    bool is_tcp = strncmp(usable, "tcp:", 4) == 0;
    dealer->needs_checksum = is_tcp && !file->is_encrypted;
    dealer->address = sc_copy_text(usable);
    dealer->folder = is_tcp ? -1 : sc_open_folder(usable);
    char *way = is_tcp ? sc_copy_text(usable) : sc_way(usable, dealer->folder);
    ((zmq_pollitem_t *)transport->items)[transport->num] = (zmq_pollitem_t){dealer->socket, 0, ZMQ_POLLIN, 0};
    ++transport->num;
    if (dealer->address == NULL || way == NULL) {
        free(way);
        return sc_no_memory(error);
    }
    if (heeds_refusals)
        sc_dealer_heed_refusals(dealer, transport->context);
    bool is_connected = set_options(dealer->socket, file, is_tcp && file->is_encrypted) &&
                        set_number(dealer->socket, ZMQ_IPV6, is_tcp && sc_needs_ipv6(usable)) &&
                        set_name(dealer->socket, name) && zmq_connect(dealer->socket, way) == 0;
    int status = is_connected ? STREAM_OK : fail(error, dealer->address);
    free(way);
    return status;
}

static long milliseconds(double timeout_s) {
    if (timeout_s <= 0)
        return 0;
    double bounded = timeout_s < LONGEST_WAIT_S ? timeout_s : LONGEST_WAIT_S;
    /* Rounded up: what is less than a millisecond away is not waited for in a busy loop. */
    return (long)(bounded * 1000) + 1;
}

int sc_transport_wait(sc_transport *transport, double timeout_s, sc_error *error) {
    zmq_pollitem_t *items = transport->items;
    if (zmq_poll(items, transport->num, milliseconds(timeout_s)) >= 0)
        return STREAM_OK;
    for (int i = 0; i < transport->num; ++i)
        items[i].revents = 0;
    return errno == EINTR ? STREAM_OK : fail(error, "cannot wait for the server");
}

bool sc_transport_is_ready(const sc_transport *transport, int i) {
    return ((const zmq_pollitem_t *)transport->items)[i].revents != 0;
}

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "transport.h"

/* The server does not know the key; it wants keys and was shown none, or the other way round. */
#ifdef ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
#define REFUSALS (ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
#else /* before 4.3, which tells of none */
#define REFUSALS 0
#endif

const char *sc_zmq_reason(int number, char text[SC_REASON_BYTES]) {
    return number >= ZMQ_HAUSNUMERO ? zmq_strerror(number) : sc_reason(number, text);
}

static void let_go(void *bytes, void *buffer) {
    (void)bytes;
    sc_buffer_release(buffer);
}

static int send_frame(sc_dealer *dealer, zmq_msg_t *frame, int flags, sc_error *error) {
    while (zmq_msg_send(frame, dealer->socket, flags | ZMQ_DONTWAIT) < 0) {
        if (errno == EINTR)
            continue;
        int reason = errno;
        char text[SC_REASON_BYTES];
        zmq_msg_close(frame);
        if (reason == EAGAIN) {
            /* No mark can be reached here: there is nobody at the other end, and there will not be. */
            dealer->is_lost = true;
            return STREAM_OK;
        }
        return sc_fail(error, STREAM_ERROR_SYSTEM, "cannot send to the server at %s: %s", dealer->address,
                       sc_zmq_reason(reason, text));
    }
    return STREAM_OK;
}

static int send_copy(sc_dealer *dealer, const void *bytes, size_t num_bytes, int flags, sc_error *error) {
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, num_bytes) != 0)
        return sc_no_memory(error);
    memcpy(zmq_msg_data(&frame), bytes, num_bytes);
    return send_frame(dealer, &frame, flags, error);
}

int sc_dealer_send(sc_dealer *dealer, const sc_message *message, sc_error *error) {
    if (message->bytes == NULL)
        return sc_no_memory(error);
    return send_copy(dealer, message->bytes, message->num_bytes, 0, error);
}

int sc_dealer_send_place(sc_dealer *dealer, const sc_data *data, uint64_t offset, sc_error *error) {
    uint8_t header[SC_DATA_BYTES], payload[SC_PLACE_BYTES];
    sc_encode_data(data, header);
    sc_encode_place(offset, payload);
    int code = send_copy(dealer, header, sizeof header, ZMQ_SNDMORE, error);
    return code != STREAM_OK || dealer->is_lost ? code : send_copy(dealer, payload, sizeof payload, 0, error);
}

int sc_dealer_send_data(sc_dealer *dealer, const sc_data *data, const sc_frame *frames, int num_frames,
                        sc_buffer *buffer, sc_error *error) {
    uint8_t header[SC_DATA_BYTES];
    sc_encode_data(data, header);
    int code = send_copy(dealer, header, sizeof header, ZMQ_SNDMORE, error);
    for (int i = 0; i < num_frames && code == STREAM_OK && !dealer->is_lost; ++i) {
        zmq_msg_t frame;
        sc_buffer_hold(buffer);
        if (zmq_msg_init_data(&frame, frames[i].bytes, frames[i].num_bytes, let_go, buffer) != 0) {
            sc_buffer_release(buffer);
            return sc_no_memory(error);
        }
        code = send_frame(dealer, &frame, i + 1 < num_frames ? ZMQ_SNDMORE : 0, error);
    }
    return code;
}

/* Read the further frames of a message. They are there: a message arrives as a whole. */
static void skip_the_others(void *socket) {
    bool has_more = true;
    while (has_more) {
        zmq_msg_t frame;
        int num_bytes;
        zmq_msg_init(&frame);
        do
            num_bytes = zmq_msg_recv(&frame, socket, 0);
        while (num_bytes < 0 && errno == EINTR);
        has_more = num_bytes >= 0 && zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
}

/* The first frame of the next message; the others are of no use. 1: it is there, 0: none waits, -1: see errno. */
static int receive_header(void *socket, zmq_msg_t *header) {
    zmq_msg_init(header);
    for (;;) {
        if (zmq_msg_recv(header, socket, ZMQ_DONTWAIT) >= 0)
            break;
        if (errno != EINTR)
            return errno == EAGAIN ? 0 : -1;
    }
    if (zmq_msg_more(header))
        skip_the_others(socket);
    return 1;
}

void sc_dealer_heed_refusals(sc_dealer *dealer, void *context) {
    char place[64];
    if (strncmp(dealer->address, "tcp:", 4) != 0)
        return;
    snprintf(place, sizeof place, "inproc://refusals-%p", dealer->socket);
    /* Without it a refusal is silence, which ends as any other. An event that nobody could receive would block
     * ZeroMQ's thread for good: so the receiver comes first, and goes last. */
    dealer->refusals = zmq_socket(context, ZMQ_PAIR);
    if (dealer->refusals != NULL && (zmq_connect(dealer->refusals, place) != 0 ||
                                     zmq_socket_monitor(dealer->socket, place, REFUSALS) != 0)) {
        zmq_close(dealer->refusals);
        dealer->refusals = NULL;
    }
}

void sc_dealer_close(sc_dealer *dealer, int linger_ms) {
    if (dealer->refusals != NULL) {
        zmq_socket_monitor(dealer->socket, NULL, 0);
        zmq_close(dealer->refusals);
    }
    zmq_setsockopt(dealer->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_close(dealer->socket);
    if (dealer->folder >= 0)
        close(dealer->folder);
    free(dealer->address);
}

bool sc_dealer_is_local(const sc_dealer *dealer) {
    return dealer->folder >= 0;
}

bool sc_dealer_is_refused(const sc_dealer *dealer) {
    zmq_pollitem_t item = {dealer->refusals, 0, ZMQ_POLLIN, 0};
    return dealer->refusals != NULL && zmq_poll(&item, 1, 0) > 0;
}

int sc_dealer_receive(sc_dealer *dealer, bool *is_there, sc_reply *reply, sc_error *error) {
    zmq_msg_t header;
    char text[SC_REASON_BYTES];
    int code = STREAM_OK;
    int received = receive_header(dealer->socket, &header);
    *is_there = received > 0;
    if (received < 0) {
        code = sc_fail(error, STREAM_ERROR_SYSTEM, "cannot hear the server at %s: %s", dealer->address,
                       sc_zmq_reason(errno, text));
    } else if (received > 0) {
        sc_error problem = {.code = STREAM_OK};
        code = sc_decode_reply(zmq_msg_data(&header), zmq_msg_size(&header), reply, &problem);
        if (code == STREAM_ERROR_REFUSED)
            sc_fail(error, code, "the server at %s does not speak the protocol of this client: %.512s",
                    dealer->address, problem.text);
        else if (code != STREAM_OK)
            *error = problem;
    }
    zmq_msg_close(&header);
    return code;
}

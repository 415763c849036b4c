/* The library's only door to ZeroMQ: sockets that speak the messages of the protocol. */
#ifndef SC_TRANSPORT_H
#define SC_TRANSPORT_H

#include "buffer.h"
#include "connection_file.h"

/* The meaning of an errno after a call of ZeroMQ; it may lie in `text`. */
const char *sc_zmq_reason(int number, char text[SC_REASON_BYTES]);

/* ZeroMQ's threads. NULL: they cannot be had. */
void *sc_context_new(sc_error *error);
/* All sockets must be closed. What lingers is waited for, two seconds at most. NULL does nothing. */
void sc_context_close(void *context);

/* One connection to one socket of the server. is_lost: ZeroMQ has given it up, as it does when what came was forged or
 * damaged; nothing goes out any more. folder: that of an ipc socket, kept open, or -1. */
typedef struct {
    void *socket;
    char *address;
    int folder;
    bool is_lost;
    bool needs_checksum;
    void *refusals; /* where ZeroMQ tells of them, or NULL */
} sc_dealer;

/* The connections of one simulation to one server. */
typedef struct {
    void *context;
    const sc_connection_file *file;
    int num;
    int capacity;
    sc_dealer *dealers;
    void *items;
} sc_transport;

/* `file` is needed only while connections are made. On an error there is nothing to close. */
int sc_transport_open(sc_transport *transport, void *context, const sc_connection_file *file, int capacity,
                      sc_error *error);

/* Close all connections; what ZeroMQ still holds is sent on for two seconds at most, or dropped. */
void sc_transport_close(sc_transport *transport, bool linger);

/* A connection to the first of these addresses that can be used from this node; the next one in `dealers`. `name` may
 * be NULL or "". One that heeds_refusals tells of them over TCP, where there are the means.
 * STREAM_ERROR_UNREACHABLE: none can. */
int sc_transport_connect(sc_transport *transport, const sc_addresses *addresses, const char *name, bool heeds_refusals,
                         sc_error *error);

/* Whether the server is on this node. */
bool sc_dealer_is_local(const sc_dealer *dealer);

/* For sc_transport_connect, before there is a connection: it may be refused before this thread goes on. */
void sc_dealer_heed_refusals(sc_dealer *dealer, void *context);
/* The server has refused the keys, or that there are none. Nothing more will come, even where ZeroMQ still takes
 * messages. */
bool sc_dealer_is_refused(const sc_dealer *dealer);

/* ZeroMQ sends what it still holds for so long, and then drops it. */
void sc_dealer_close(sc_dealer *dealer, int linger_ms);

/* Wait for messages, at the latest for timeout_s. */
int sc_transport_wait(sc_transport *transport, double timeout_s, sc_error *error);
/* Whether the last wait found a message on connection i. */
bool sc_transport_is_ready(const sc_transport *transport, int i);

/* Bytes in a buffer. */
typedef struct {
    uint8_t *bytes;
    size_t num_bytes;
} sc_frame;

/* Give a message to ZeroMQ; never blocks. Without anybody at the other end it is lost, and so is the connection. */
int sc_dealer_send(sc_dealer *dealer, const sc_message *message, sc_error *error);
/* The same with a payload, which is not copied: ZeroMQ becomes an owner of the buffer. */
int sc_dealer_send_data(sc_dealer *dealer, const sc_data *data, const sc_frame *frames, int num_frames,
                        sc_buffer *buffer, sc_error *error);
/* The same with a payload that lies in the segment from byte `offset` on: it stays there until the server has it. */
int sc_dealer_send_place(sc_dealer *dealer, const sc_data *data, uint64_t offset, sc_error *error);

/* The next message. *is_there false: none waits. STREAM_ERROR_REFUSED: it is none of this protocol. */
int sc_dealer_receive(sc_dealer *dealer, bool *is_there, sc_reply *reply, sc_error *error);

#endif

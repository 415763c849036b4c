/* One client rank's connection to one server rank. */
#ifndef SC_DATA_CONNECTION_H
#define SC_DATA_CONNECTION_H

#include "bits.h"
#include "flow_control.h"
#include "retention.h"
#include "step_messages.h"

/* The data that all connections of one client rank to one start of the server share. */
typedef struct {
    const sc_welcome *welcome;
    const sc_layout *layout;
    sc_pool *pool;
    const sc_statics *statics;
    sc_message open;  /* announces the blocks */
    sc_message offer; /* the same to a server rank of this node, which may read the segment */
    uint32_t num_server_ranks;
    int64_t stride;
} sc_opening;

/* Sends this client rank's steps to one server rank; small ones travel several to a message.
 *
 * Nothing here waits: a caller that wants to send checks whether there is room, and reads the answers if not. What
 * was sent is in `retained`. `credit` is how many steps may be on their way, `known` are the steps that the server
 * had before the connection was opened, num_steps how many different steps belong to this server rank so far (the
 * sender counts them), silent_s for how long nothing came when it was last waited for something, `stale` what a server
 * that was started again has answered, or NULL; is_unknown: the server says that it was never opened. */
typedef struct {
    sc_dealer *dealer;
    const sc_opening *opening;
    int server_rank;
    bool is_open;
    bool has_segment; /* the server reads what lies there */
    bool has_stopped;
    char *stop_reason; /* NULL: nobody told */
    bool has_ended;
    int64_t credit;
    sc_bits known;
    int64_t num_steps;
    double silent_s;
    char *stale;
    bool is_unknown;
    bool has_sent_statics;
    uint32_t incarnation;
    sc_flow_control flow;
    sc_retained *retained;
    sc_pending pending;
    double pending_since;
    double last_send;
} sc_data_connection;

void sc_data_connection_begin(sc_data_connection *connection, const sc_opening *opening, int server_rank,
                              sc_dealer *dealer, sc_retained *retained);

/* Send nothing more; all that was sent, or waited for company, is retained. */
void sc_data_connection_leave(sc_data_connection *connection);

/* Whether the server takes the connection for another one than what was opened: what was under way may be lost. */
bool sc_data_connection_is_lost(const sc_data_connection *connection);

/* Whether credit is left for one more step. */
bool sc_data_connection_has_room(const sc_data_connection *connection);

/* Retain a step that the server knows, until it is durable. */
int sc_data_connection_keep(sc_data_connection *connection, const sc_unsent *unsent, sc_error *error);

/* Announce this rank's blocks; may be repeated until the answer is there. */
int sc_data_connection_ask_to_open(sc_data_connection *connection, sc_error *error);
/* Ask for a new acknowledgement. */
int sc_data_connection_ping(sc_data_connection *connection, sc_error *error);

/* Send what is sent once, if that was not done yet. It goes before the first step, so that a server rank that gets no
 * step is spared it; from a client rank that sends no step, at once. */
int sc_data_connection_send_statics(sc_data_connection *connection, sc_error *error);

/* Send one step, now (*is_sent) or together with the next ones; the arrays are copied. Needs room. */
int sc_data_connection_send(sc_data_connection *connection, int64_t index, uint64_t present,
                            const sc_slice arrays[], bool *is_sent, sc_error *error);
/* Send what waits for company, and read what the server has said. */
int sc_data_connection_flush(sc_data_connection *connection, sc_error *error);
/* Say that all steps have been sent: `total` to all server ranks together. */
int sc_data_connection_end(sc_data_connection *connection, int64_t total, sc_error *error);

/* Read what the server has said; *heard becomes true if it was anything for us. STREAM_ERROR_REFUSED: it refused a
 * message. */
int sc_data_connection_take_answers(sc_data_connection *connection, bool *heard, sc_error *error);

/* "server rank 3 at tcp://…", cut where it does not fit. */
void sc_data_connection_name(const sc_data_connection *connection, char *text, size_t num_bytes);

#endif

/* One client rank's connections to all server ranks, as long as none is lost and the server is not started again. */
#ifndef SC_SESSION_H
#define SC_SESSION_H

#include "data_connection.h"
#include "watch.h"

/* Beside STREAM_OK and the errors, whatever waits may give these. */
enum {
    SC_OVER = 101, /* the server was started again, and the connection file says where; or a connection was lost */
    SC_ENDED = 102 /* the study has ended: nothing more is wanted */
};

/* The data of a client rank that outlives its sessions. */
typedef struct {
    void *context;
    sc_pool *pool;
    sc_watch *watch;
    char who[64];
    uint32_t rank;
    uint32_t num_ranks;
    double silence_s;
    const sc_block *blocks;
    int num_blocks;
    sc_statics statics;
    sc_layout layout;
    sc_retention retention;
} sc_client;

typedef struct {
    sc_client *client;
    const sc_welcome *welcome;
    uint32_t incarnation;
    sc_opening opening;
    sc_transport transport;
    int num;
    sc_data_connection *connections;
} sc_session;

/* Connect to all server ranks, announce this client rank, and learn what they know. `welcome` must outlive the session.
 * sc_session_close must be called even after an error. */
int sc_session_open(sc_session *session, sc_client *client, const sc_welcome *welcome, sc_error *error);

/* Leave without a word; with `linger` what was sent may still go out for a moment. */
void sc_session_close(sc_session *session, bool linger);

/* The connection over which a step has to go. */
sc_data_connection *sc_session_connection(sc_session *session, int64_t index);

/* Wait for credit, not much longer than most_s (perhaps INFINITY); *has_room says whether there is some. */
int sc_session_wait_for_room(sc_session *session, sc_data_connection *connection, double most_s, bool *has_room,
                             sc_error *error);
/* Send all that waits for company. */
int sc_session_flush(sc_session *session, sc_error *error);
/* Say that all has been sent, `total` steps to all server ranks together, and wait until it is settled. */
int sc_session_end(sc_session *session, int64_t total, sc_error *error);

/* Whether a connection was lost. */
bool sc_session_has_lost(const sc_session *session);
/* Whether a server rank has said that the study has ended; *reason is why, or NULL if none told. */
bool sc_session_has_stopped(const sc_session *session, const char **reason);

/* The incarnation of the server that welcomed us. It may be ahead of the file, but it is no news then. */
uint32_t sc_incarnation_of(const sc_connection_file *file, const sc_welcome *welcome);

#endif

/* Waiting for an answer on one connection, listening to all. */
#ifndef SC_WAIT_H
#define SC_WAIT_H

#include "session.h"

/* What is waited for, what is said again while it is not there, and how long that may last (perhaps INFINITY). */
typedef struct {
    bool (*is_done)(const sc_data_connection *connection);
    int (*repeat)(sc_data_connection *connection, sc_error *error);
    double repeat_s;
    double most_s;
} sc_awaited;

bool sc_is_open(const sc_data_connection *connection);
bool sc_has_ended(const sc_data_connection *connection);

/* The time may be over without it. Gives up when the session is over (SC_OVER), the study ended (SC_ENDED), a server rank refused a message, or the one
 * that is waited for said nothing for too long (STREAM_ERROR_UNREACHABLE). */
int sc_wait(sc_session *session, sc_data_connection *connection, sc_awaited awaited, sc_error *error);

#endif

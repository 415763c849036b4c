#include "wait.h"

#include "patience.h"

bool sc_is_open(const sc_data_connection *connection) {
    return connection->is_open;
}

bool sc_has_ended(const sc_data_connection *connection) {
    return connection->has_ended;
}

static int unreachable(const sc_client *client, const sc_data_connection *connection, sc_error *error) {
    char name[SC_ERROR_BYTES / 4];
    sc_data_connection_name(connection, name, sizeof name);
    if (connection->stale != NULL)
        return sc_fail(error, STREAM_ERROR_UNREACHABLE,
                       "%s waits for %s: no word for %g s; a new server is there (%.400s)", client->who, name,
                       client->silence_s, connection->stale);
    return sc_fail(error, STREAM_ERROR_UNREACHABLE, "%s waits for %s: no word for %g s", client->who, name,
                   client->silence_s);
}

/* Read what has come on any connection; *is_heard says whether some of it was on the one that is waited for. */
static int hear_all(sc_session *session, const sc_data_connection *connection, bool *is_heard, sc_error *error) {
    for (int i = 0; i < session->num; ++i) {
        sc_data_connection *other = &session->connections[i];
        bool heard = false;
        if (!sc_transport_is_ready(&session->transport, i))
            continue;
        int code = sc_data_connection_take_answers(other, &heard, error);
        if (code != STREAM_OK)
            return code;
        *is_heard |= heard && other == connection;
    }
    return STREAM_OK;
}

int sc_wait(sc_session *session, sc_data_connection *connection, sc_awaited awaited, sc_error *error) {
    sc_client *client = session->client;
    sc_patience patience = sc_patience_begin(client->silence_s, awaited.repeat_s, connection->silent_s);
    const char *reason;
    while (!awaited.is_done(connection) && !sc_patience_has_lasted(&patience, awaited.most_s)) {
        if (sc_watch_is_newer_than(client->watch, session->epoch, false))
            return SC_OVER;
        if (sc_patience_is_over(&patience))
            return unreachable(client, connection, error);
        double slice_s = sc_patience_slice_s(&patience), look_s = sc_watch_slice_s(client->watch);
        bool is_heard = false;
        double most_s = slice_s < look_s ? slice_s : look_s;
        int code = sc_transport_wait(&session->transport, most_s, error);
        sc_patience_listened(&patience, most_s);
        if (code == STREAM_OK)
            code = hear_all(session, connection, &is_heard, error);
        if (code != STREAM_OK)
            return code;
        if (is_heard)
            sc_patience_heard(&patience);
        if (sc_session_has_stopped(session, &reason))
            return SC_ENDED;
        if (sc_session_has_lost(session))
            return SC_OVER;
        if (sc_patience_may_repeat(&patience) && (code = awaited.repeat(connection, error)) != STREAM_OK)
            return code;
    }
    connection->silent_s = sc_patience_silent_s(&patience);
    return STREAM_OK;
}

#include "session.h"

#include <math.h>
#include <stdlib.h>

#include "wait.h"

#ifndef SC_PING_S
#define SC_PING_S 0.5
#endif
#ifndef SC_REOPEN_S
#define SC_REOPEN_S 1.0
#endif

uint32_t sc_epoch_of(const sc_connection_file *file, const sc_welcome *welcome) {
    return file->epoch > welcome->epoch ? file->epoch : welcome->epoch;
}

static sc_opening opening_of(const sc_client *client, const sc_welcome *welcome) {
    return (sc_opening){
        .welcome = welcome,
        .layout = &client->layout,
        .pool = client->pool,
        .open = sc_encode_open(welcome, client->rank, client->num_ranks, client->blocks, client->num_blocks),
        .num_server_ranks = (uint32_t)welcome->num_server_ranks,
        .stride = welcome->routing == SC_BY_STEPS ? welcome->num_server_ranks : 1,
    };
}

static int connect_to_all(sc_session *session, sc_error *error) {
    const sc_welcome *welcome = session->welcome;
    sc_client *client = session->client;
    session->connections = calloc((size_t)welcome->num_server_ranks, sizeof *session->connections);
    if (session->connections == NULL)
        return sc_no_memory(error);
    int code = sc_transport_open(&session->transport, client->context, &client->watch->file,
                                 welcome->num_server_ranks, error);
    for (int rank = 0; rank < welcome->num_server_ranks && code == STREAM_OK; ++rank) {
        code = sc_transport_connect(&session->transport, &welcome->endpoints[rank], NULL, error);
        sc_backlog *backlog = sc_retention_backlog(&client->retention);
        if (code == STREAM_OK && backlog == NULL)
            code = sc_no_memory(error);
        if (code != STREAM_OK)
            break;
        sc_data_connection_begin(&session->connections[rank], &session->opening, rank,
                                 &session->transport.dealers[rank], backlog);
        ++session->num;
    }
    return code;
}

int sc_session_open(sc_session *session, sc_client *client, const sc_welcome *welcome, sc_error *error) {
    *session = (sc_session){
        .client = client,
        .welcome = welcome,
        .epoch = sc_epoch_of(&client->watch->file, welcome),
        .opening = opening_of(client, welcome),
    };
    int code = connect_to_all(session, error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_data_connection_ask_to_open(&session->connections[i], error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_wait(session, &session->connections[i],
                       (sc_awaited){sc_is_open, sc_data_connection_ask_to_open, SC_REOPEN_S, INFINITY}, error);
    return code;
}

void sc_session_close(sc_session *session, bool linger) {
    for (int i = 0; i < session->num; ++i)
        sc_data_connection_leave(&session->connections[i]);
    session->num = 0;
    sc_transport_close(&session->transport, linger);
    sc_message_free(&session->opening.open);
    free(session->connections);
    session->connections = NULL;
}

sc_data_connection *sc_session_connection(sc_session *session, int64_t index) {
    const sc_welcome *welcome = session->welcome;
    uint64_t sum = (uint64_t)welcome->simulation + (welcome->routing == SC_BY_STEPS ? (uint64_t)index : 0);
    return &session->connections[sum % (uint64_t)session->num];
}

int sc_session_flush(sc_session *session, sc_error *error) {
    int code = STREAM_OK;
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_data_connection_flush(&session->connections[i], error);
    return code;
}

int sc_session_wait_for_room(sc_session *session, sc_data_connection *connection, double most_s, bool *has_room,
                             sc_error *error) {
    int code = STREAM_OK;
    if (!sc_data_connection_has_room(connection)) {
        sc_awaited room = {sc_data_connection_has_room, sc_data_connection_ping, SC_PING_S, most_s};
        /* What this rank holds back for one server rank may be what the others wait for. */
        code = sc_session_flush(session, error);
        if (code == STREAM_OK)
            code = sc_wait(session, connection, room, error);
    }
    *has_room = sc_data_connection_has_room(connection);
    return code;
}

int sc_session_end(sc_session *session, sc_error *error) {
    int code = sc_session_flush(session, error);
    int64_t total = 0;
    for (int i = 0; i < session->num; ++i)
        total += session->connections[i].num_steps;
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_data_connection_end(&session->connections[i], total, error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_wait(session, &session->connections[i],
                       (sc_awaited){sc_has_ended, sc_data_connection_ping, SC_PING_S, INFINITY}, error);
    return code;
}

bool sc_session_has_lost(const sc_session *session) {
    for (int i = 0; i < session->num; ++i)
        if (sc_data_connection_is_lost(&session->connections[i]))
            return true;
    return false;
}

bool sc_session_has_stopped(const sc_session *session, const char **reason) {
    bool has_stopped = false;
    *reason = NULL;
    for (int i = 0; i < session->num; ++i) {
        const sc_data_connection *connection = &session->connections[i];
        has_stopped |= connection->has_stopped;
        if (connection->stop_reason != NULL && *reason == NULL)
            *reason = connection->stop_reason;
    }
    return has_stopped;
}

#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "address.h"
#include "silence_timer.h"

#define SPARE_BYTES ((size_t)64 * 1024 * 1024)
#define LARGEST_WINDOW_BYTES ((int64_t)1 << 40)
#ifndef SC_PING_S
#define SC_PING_S 0.5
#endif
#ifndef SC_REOPEN_S
#define SC_REOPEN_S 1.0
#endif

/* A wait: its end, the question that is repeated until then, and its longest time (perhaps INFINITY). */
typedef struct {
    bool (*is_done)(const sc_data_connection *connection);
    int (*repeat)(sc_data_connection *connection, sc_error *error);
    double repeat_s;
    double most_s;
} sc_awaited;

static bool is_open(const sc_data_connection *connection) {
    return connection->is_open;
}

static bool has_ended(const sc_data_connection *connection) {
    return connection->has_ended;
}

static int unreachable(const sc_client *client, const sc_data_connection *connection, sc_error *error) {
    char name[SC_ERROR_BYTES / 4], unreached[SC_UNREACHED_BYTES] = "";
    sc_data_connection_name(connection, name, sizeof name);
    if (connection->stale != NULL)
        return sc_fail(error, STREAM_ERROR_UNREACHABLE,
                       "%s waits for %s: no word for %g s; a new server is there (%.400s)", client->who, name,
                       client->silence_s, connection->stale);
    if (!connection->is_open && strncmp(connection->dealer->address, "tcp:", 4) == 0)
        sc_unreached(unreached);
    return sc_fail(error, STREAM_ERROR_UNREACHABLE, "%s waits for %s: no word for %g s%s%s", client->who, name,
                   client->silence_s, unreached[0] == '\0' ? "" : ".", unreached);
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

/* The time may be over without it. Gives up when the session is over (SC_OVER), the study ended (SC_ENDED), a server rank refused a message, or the one
 * that is waited for said nothing for too long (STREAM_ERROR_UNREACHABLE). */
static int wait_for(sc_session *session, sc_data_connection *connection, sc_awaited awaited, sc_error *error) {
    sc_client *client = session->client;
    sc_silence_timer silence = sc_silence_timer_begin(client->silence_s, awaited.repeat_s, connection->silent_s);
    const char *reason;
    while (!awaited.is_done(connection) && !sc_silence_timer_has_lasted(&silence, awaited.most_s)) {
        if (sc_watch_is_newer_than(client->watch, session->incarnation, false))
            return SC_OVER;
        if (sc_watch_was_touched(client->watch))
            sc_silence_timer_heard(&silence);
        if (sc_silence_timer_is_over(&silence))
            return unreachable(client, connection, error);
        double slice_s = sc_silence_timer_slice_s(&silence), look_s = sc_watch_slice_s(client->watch);
        bool is_heard = false;
        double most_s = slice_s < look_s ? slice_s : look_s;
        int code = sc_transport_wait(&session->transport, most_s, error);
        sc_silence_timer_listened(&silence, most_s);
        if (code == STREAM_OK)
            code = hear_all(session, connection, &is_heard, error);
        if (code != STREAM_OK)
            return code;
        if (is_heard)
            sc_silence_timer_heard(&silence);
        if (sc_session_has_stopped(session, &reason))
            return SC_ENDED;
        if (sc_session_has_lost(session))
            return SC_OVER;
        if (sc_silence_timer_may_repeat(&silence) && (code = awaited.repeat(connection, error)) != STREAM_OK)
            return code;
    }
    connection->silent_s = sc_silence_timer_silent_s(&silence);
    return STREAM_OK;
}

uint32_t sc_incarnation_of(const sc_connection_file *file, const sc_welcome *welcome) {
    return file->incarnation > welcome->incarnation ? file->incarnation : welcome->incarnation;
}

static sc_message open_of(const sc_client *client, const sc_welcome *welcome, const sc_segment *segment) {
    return sc_encode_open(welcome, client->rank, client->num_ranks, client->blocks, client->num_blocks,
                          client->statics.blocks, client->statics.num, segment);
}

/* What the server ranks of this node may read, if there are some. Twice the window, since a buffer of one size is not
 * used for another. The size of a message gives the length of a ragged step. */
static const sc_segment *segment_of(const sc_session *session) {
    const sc_client *client = session->client;
    int64_t window_bytes = session->welcome->window_bytes;
    size_t step_bytes = sc_layout_bytes(&client->layout, UINT64_MAX);
    bool may_share = !client->layout.has_ragged && step_bytes > 0;
    bool is_local = false;
    for (int i = 0; i < session->num; ++i)
        is_local |= sc_dealer_is_local(&session->transport.dealers[i]);
    if (window_bytes > LARGEST_WINDOW_BYTES)
        window_bytes = LARGEST_WINDOW_BYTES;
    return may_share && is_local ? sc_pool_share(client->pool, SPARE_BYTES + 2 * (size_t)window_bytes) : NULL;
}

static sc_opening opening_of(const sc_client *client, const sc_welcome *welcome) {
    return (sc_opening){
        .welcome = welcome,
        .layout = &client->layout,
        .statics = &client->statics,
        .pool = client->pool,
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
        code = sc_transport_connect(&session->transport, &welcome->endpoints[rank], NULL, false, error);
        sc_retained *retained = sc_retention_of_connection(&client->retention);
        if (code == STREAM_OK && retained == NULL)
            code = sc_no_memory(error);
        if (code != STREAM_OK)
            break;
        sc_data_connection_begin(&session->connections[rank], &session->opening, rank,
                                 &session->transport.dealers[rank], retained);
        ++session->num;
    }
    return code;
}

int sc_session_open(sc_session *session, sc_client *client, const sc_welcome *welcome, sc_error *error) {
    *session = (sc_session){
        .client = client,
        .welcome = welcome,
        .incarnation = sc_incarnation_of(&client->watch->file, welcome),
        .opening = opening_of(client, welcome),
    };
    int code = connect_to_all(session, error);
    session->opening.open = open_of(client, welcome, NULL);
    session->opening.offer = open_of(client, welcome, segment_of(session));
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_data_connection_ask_to_open(&session->connections[i], error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = wait_for(session, &session->connections[i],
                        (sc_awaited){is_open, sc_data_connection_ask_to_open, SC_REOPEN_S, INFINITY}, error);
    return code;
}

void sc_session_close(sc_session *session, bool linger) {
    bool is_settled = true;
    for (int i = 0; i < session->num; ++i)
        is_settled &= session->connections[i].has_ended;
    /* A server rank may still read what was sent, however late. */
    if (!is_settled)
        sc_pool_unshare(session->client->pool);
    for (int i = 0; i < session->num; ++i)
        sc_data_connection_leave(&session->connections[i]);
    session->num = 0;
    sc_transport_close(&session->transport, linger);
    sc_message_free(&session->opening.open);
    sc_message_free(&session->opening.offer);
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
        /* The others may wait for what this rank holds back for one server rank. */
        code = sc_session_flush(session, error);
        if (code == STREAM_OK)
            code = wait_for(session, connection, room, error);
    }
    *has_room = sc_data_connection_has_room(connection);
    return code;
}

int sc_session_end(sc_session *session, int64_t total, sc_error *error) {
    int code = sc_session_flush(session, error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = sc_data_connection_end(&session->connections[i], total, error);
    for (int i = 0; i < session->num && code == STREAM_OK; ++i)
        code = wait_for(session, &session->connections[i],
                        (sc_awaited){has_ended, sc_data_connection_ping, SC_PING_S, INFINITY}, error);
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

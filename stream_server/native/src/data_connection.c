#include "data_connection.h"

#include <stdio.h>
#include <stdlib.h>

#include "message.h"
#include "patience.h"

#define PENDING_S 0.005

void sc_data_connection_begin(sc_data_connection *connection, const sc_opening *opening, int server_rank,
                              sc_dealer *dealer, sc_backlog *backlog) {
    *connection = (sc_data_connection){
        .dealer = dealer,
        .opening = opening,
        .server_rank = server_rank,
        .epoch = opening->welcome->epoch,
        .backlog = backlog,
        .pending_since = -PENDING_S,
        .last_send = -PENDING_S,
    };
}

bool sc_data_connection_has_room(const sc_data_connection *connection) {
    return connection->window.room > connection->pending.steps.num;
}

bool sc_data_connection_is_lost(const sc_data_connection *connection) {
    return connection->is_unknown || connection->dealer->is_lost;
}

int sc_data_connection_keep(sc_data_connection *connection, const sc_unsent *unsent, sc_error *error) {
    const sc_opening *opening = connection->opening;
    const void *arrays[SC_MAX_FIELDS];
    sc_steps steps;
    int code = sc_steps_begin(&steps, opening->pool, opening->layout, unsent->steps.present, 1, error);
    if (code != STREAM_OK)
        return code;
    sc_steps_arrays(&unsent->steps, opening->layout, unsent->row, arrays);
    sc_steps_add(&steps, opening->layout, arrays);
    steps.index = unsent->index;
    steps.stride = opening->stride;
    /* What is sent next is never durable without it. */
    return sc_backlog_add(connection->backlog, 1, &steps, error);
}

int sc_data_connection_ask_to_open(sc_data_connection *connection, sc_error *error) {
    return sc_dealer_send(connection->dealer, &connection->opening->open, error);
}

int sc_data_connection_ping(sc_data_connection *connection, sc_error *error) {
    sc_message ping = sc_encode_ping();
    int code = sc_dealer_send(connection->dealer, &ping, error);
    sc_message_free(&ping);
    return code;
}

int sc_data_connection_end(sc_data_connection *connection, int64_t total, sc_error *error) {
    sc_message end =
        sc_encode_end(connection->opening->welcome, connection->epoch, connection->num_steps, total);
    int code = sc_dealer_send(connection->dealer, &end, error);
    sc_message_free(&end);
    return code;
}

/* Send steps, and keep them. */
static int send_steps(sc_data_connection *connection, sc_steps *steps, sc_error *error) {
    const sc_welcome *welcome = connection->opening->welcome;
    sc_data data = {
        .simulation = welcome->simulation,
        .attempt = welcome->attempt,
        .epoch = connection->epoch,
        .sequence = connection->window.sequence,
    };
    int64_t num_messages;
    uint32_t num_steps = steps->num;
    int code = sc_send_steps(connection->dealer, connection->opening->layout, steps, data, &num_messages, error);
    if (code == STREAM_OK)
        code = sc_window_sent(&connection->window, num_steps, num_messages, error);
    if (code != STREAM_OK) {
        sc_steps_release(steps);
        return code;
    }
    return sc_backlog_add(connection->backlog, connection->window.sequence, steps, error);
}

static int send_pending(sc_data_connection *connection, sc_error *error) {
    if (connection->pending.steps.num == 0)
        return STREAM_OK;
    sc_steps steps;
    int code = sc_pending_take(&connection->pending, &steps, error);
    return code == STREAM_OK ? send_steps(connection, &steps, error) : code;
}

int sc_data_connection_flush(sc_data_connection *connection, sc_error *error) {
    bool ignored = false;
    int code = send_pending(connection, error);
    return code == STREAM_OK ? sc_data_connection_take_answers(connection, &ignored, error) : code;
}

static int send_alone(sc_data_connection *connection, int64_t index, uint64_t present, const void *const arrays[],
                      sc_error *error) {
    const sc_opening *opening = connection->opening;
    sc_steps steps;
    bool ignored = false;
    int code = sc_steps_begin(&steps, opening->pool, opening->layout, present, 1, error);
    if (code != STREAM_OK)
        return code;
    steps.index = index;
    steps.stride = opening->stride;
    sc_steps_add(&steps, opening->layout, arrays);
    code = send_steps(connection, &steps, error);
    return code == STREAM_OK ? sc_data_connection_take_answers(connection, &ignored, error) : code;
}

int sc_data_connection_send(sc_data_connection *connection, int64_t index, uint64_t present,
                            const void *const arrays[], bool *is_sent, sc_error *error) {
    sc_pending *pending = &connection->pending;
    int code = STREAM_OK;
    *is_sent = true;
    if (pending->capacity == 0)
        return send_alone(connection, index, present, arrays, error);
    if (!sc_pending_fits(pending, index, present))
        code = sc_data_connection_flush(connection, error);
    if (code != STREAM_OK)
        return code;
    double now = sc_now();
    if (pending->steps.num == 0)
        connection->pending_since = now;
    code = sc_pending_add(pending, index, present, arrays, error);
    if (code != STREAM_OK)
        return code;
    /* A sender that pauses between its steps is slower than the network: its steps go at once. */
    bool is_slow = now - connection->pending_since > PENDING_S || now - connection->last_send > PENDING_S;
    connection->last_send = now;
    if (is_slow || pending->steps.num == pending->capacity || !sc_data_connection_has_room(connection))
        return sc_data_connection_flush(connection, error);
    *is_sent = false;
    return STREAM_OK;
}

/* Have what waited for company in the backlog; false: no memory. */
static bool keep_pending(sc_data_connection *connection) {
    sc_steps steps;
    sc_error ignored;
    if (connection->pending.steps.num == 0)
        return true;
    return sc_pending_take(&connection->pending, &steps, &ignored) == STREAM_OK &&
           sc_backlog_add(connection->backlog, connection->window.sequence + 1, &steps, &ignored) == STREAM_OK;
}

void sc_data_connection_leave(sc_data_connection *connection) {
    if (!keep_pending(connection))
        connection->backlog->retention->has_lost = true;
    sc_pending_free(&connection->pending);
    sc_window_free(&connection->window);
    sc_bits_free(&connection->known);
    free(connection->stop_reason);
    free(connection->stale);
    connection->stop_reason = connection->stale = NULL;
}

void sc_data_connection_name(const sc_data_connection *connection, char *text, size_t num_bytes) {
    snprintf(text, num_bytes, "server rank %d at %s", connection->server_rank, connection->dealer->address);
}

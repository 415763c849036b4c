#include "data_connection.h"

#include <stdio.h>
#include <stdlib.h>

#include "silence_timer.h"

#define PENDING_S 0.005
#define MESSAGE_BYTES ((size_t)512 * 1024)
#define PENDING_BYTES ((size_t)16 * 1024 * 1024)

void sc_data_connection_begin(sc_data_connection *connection, const sc_opening *opening, int server_rank,
                              sc_dealer *dealer, sc_retained *retained) {
    *connection = (sc_data_connection){
        .dealer = dealer,
        .opening = opening,
        .server_rank = server_rank,
        .incarnation = opening->welcome->incarnation,
        .retained = retained,
        .pending_since = -PENDING_S,
        .last_send = -PENDING_S,
    };
}

bool sc_data_connection_has_room(const sc_data_connection *connection) {
    return connection->flow.room > connection->pending.steps.num;
}

bool sc_data_connection_is_lost(const sc_data_connection *connection) {
    return connection->is_unknown || connection->dealer->is_lost;
}

int sc_data_connection_keep(sc_data_connection *connection, const sc_unsent *unsent, sc_error *error) {
    const sc_opening *opening = connection->opening;
    sc_slice arrays[SC_MAX_FIELDS];
    sc_steps steps;
    sc_steps_arrays(&unsent->steps, opening->layout, unsent->row, arrays);
    int code = sc_steps_single(&steps, opening->pool, opening->layout, unsent->steps.present, arrays, error);
    if (code != STREAM_OK)
        return code;
    steps.index = unsent->index;
    steps.stride = opening->stride;
    /* What is sent next is never durable without it. */
    return sc_retained_add(connection->retained, 1, &steps, error);
}

int sc_data_connection_ask_to_open(sc_data_connection *connection, sc_error *error) {
    const sc_opening *opening = connection->opening;
    bool is_local = sc_dealer_is_local(connection->dealer);
    return sc_dealer_send(connection->dealer, is_local ? &opening->offer : &opening->open, error);
}

int sc_data_connection_ping(sc_data_connection *connection, sc_error *error) {
    sc_message ping = sc_encode_ping();
    int code = sc_dealer_send(connection->dealer, &ping, error);
    sc_message_free(&ping);
    return code;
}

int sc_data_connection_end(sc_data_connection *connection, int64_t total, sc_error *error) {
    sc_message end =
        sc_encode_end(connection->opening->welcome, connection->incarnation, connection->num_steps, total);
    int code = sc_dealer_send(connection->dealer, &end, error);
    sc_message_free(&end);
    return code;
}

static sc_data next_data(const sc_data_connection *connection) {
    const sc_welcome *welcome = connection->opening->welcome;
    return (sc_data){
        .simulation = welcome->simulation,
        .attempt = welcome->attempt,
        .incarnation = connection->incarnation,
        .sequence = connection->flow.sequence,
    };
}

int sc_data_connection_send_statics(sc_data_connection *connection, sc_error *error) {
    const sc_opening *opening = connection->opening;
    const sc_statics *statics = opening->statics;
    if (connection->has_sent_statics || statics->num == 0)
        return STREAM_OK;
    connection->has_sent_statics = true;
    sc_data data = next_data(connection);
    data.is_static = true;
    data.num_steps = 1;
    data.present = UINT64_MAX >> (SC_MAX_FIELDS - statics->num);
    sc_steps steps;
    int code = sc_steps_begin(&steps, opening->pool, &statics->layout, data.present, 1, error);
    if (code != STREAM_OK)
        return code;
    sc_steps_add(&steps, &statics->layout, statics->arrays);
    code = sc_send_parts(connection->dealer, &statics->layout, &steps, &data, error);
    sc_steps_release(&steps);
    if (code != STREAM_OK)
        return code;
    return sc_flow_control_sent(&connection->flow, 0, data.sequence - connection->flow.sequence, error);
}

/* How many steps may travel in one message: the length of a ragged block is told by the size of its message. */
static uint32_t steps_per_message(const sc_opening *opening, uint32_t credit) {
    if (opening->layout->has_ragged)
        return 1;
    size_t message_bytes = PENDING_BYTES / opening->num_server_ranks;
    if (message_bytes > MESSAGE_BYTES)
        message_bytes = MESSAGE_BYTES;
    size_t step_bytes = sc_layout_bytes(opening->layout, UINT64_MAX);
    size_t num = message_bytes / (step_bytes > 0 ? step_bytes : 1);
    return num < credit / 2 ? (uint32_t)num : credit / 2;
}

static int take_opened(sc_data_connection *connection, const sc_opened *opened, sc_error *error) {
    const sc_opening *opening = connection->opening;
    if (connection->is_open)
        return STREAM_OK;
    connection->is_open = true;
    connection->incarnation = opened->incarnation;
    connection->credit = opened->credit;
    connection->has_segment = opened->has_segment;
    connection->flow = sc_flow_control_begin(opened->credit);
    if (!sc_bits_load(&connection->known, opened->known, opened->num_known_bytes))
        return sc_no_memory(error);
    uint32_t num = steps_per_message(opening, opened->credit);
    connection->pending = (sc_pending){
        .pool = opening->pool,
        .layout = opening->layout,
        .capacity = num > 1 ? num : 0,
        .stride = opening->stride,
    };
    bool at_once = opening->layout->num_blocks == 0 || opened->num_known_bytes > 0;
    return at_once ? sc_data_connection_send_statics(connection, error) : STREAM_OK;
}

static void take_ack(sc_data_connection *connection, const sc_ack *ack) {
    sc_flow_control_received(&connection->flow, ack->received);
    connection->retained->received = ack->received;
    sc_retained_durable(connection->retained, ack->durable);
    connection->has_ended |= ack->ended;
    connection->has_stopped |= ack->stop;
}

/* Become the owner of a reply's text. */
static void take_text(char **place, char **text) {
    free(*place);
    *place = *text;
    *text = NULL;
}

static int take_refusal(sc_data_connection *connection, sc_refusal *refusal, bool *heard, sc_error *error) {
    if (refusal->reason == SC_STALE_INCARNATION) {
        take_text(&connection->stale, &refusal->text);
        return STREAM_OK;
    }
    if (refusal->reason == SC_NOT_OPEN) {
        connection->is_unknown = true;
        return STREAM_OK;
    }
    *heard = true;
    if (refusal->reason == SC_BUSY)
        return STREAM_OK;
    char name[SC_ERROR_BYTES / 4];
    sc_data_connection_name(connection, name, sizeof name);
    return sc_fail(error, STREAM_ERROR_REFUSED, "%s refused simulation %lld: %s", name,
                   (long long)connection->opening->welcome->simulation, refusal->text);
}

static int take(sc_data_connection *connection, sc_reply *answer, bool *heard, sc_error *error) {
    if (answer->kind == SC_REFUSAL)
        return take_refusal(connection, &answer->refusal, heard, error);
    *heard = true;
    switch (answer->kind) {
    case SC_ACK:
        take_ack(connection, &answer->ack);
        return STREAM_OK;
    case SC_OPENED:
        return take_opened(connection, &answer->opened, error);
    case SC_STOPPED:
        connection->has_stopped = true;
        take_text(&connection->stop_reason, &answer->stop_text);
        return STREAM_OK;
    default:
        return STREAM_OK;
    }
}

int sc_data_connection_take_answers(sc_data_connection *connection, bool *heard, sc_error *error) {
    for (;;) {
        bool is_there;
        sc_reply answer;
        int code = sc_dealer_receive(connection->dealer, &is_there, &answer, error);
        if (code != STREAM_OK || !is_there)
            return code;
        code = take(connection, &answer, heard, error);
        sc_reply_free(&answer);
        if (code != STREAM_OK)
            return code;
        if (*heard)
            connection->silent_s = 0;
    }
}

/* Send steps, and keep them. */
static int send_steps(sc_data_connection *connection, sc_steps *steps, sc_error *error) {
    int64_t num_messages;
    uint32_t num_steps = steps->num;
    int code = sc_data_connection_send_statics(connection, error);
    sc_data data = next_data(connection);
    data.in_segment = connection->has_segment;
    if (code == STREAM_OK)
        code = sc_send_steps(connection->dealer, connection->opening->layout, steps, data, &num_messages, error);
    if (code == STREAM_OK)
        code = sc_flow_control_sent(&connection->flow, num_steps, num_messages, error);
    if (code != STREAM_OK) {
        sc_steps_release(steps);
        return code;
    }
    return sc_retained_add(connection->retained, connection->flow.sequence, steps, error);
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

static int send_alone(sc_data_connection *connection, int64_t index, uint64_t present, const sc_slice arrays[],
                      sc_error *error) {
    const sc_opening *opening = connection->opening;
    sc_steps steps;
    bool ignored = false;
    int code = sc_steps_single(&steps, opening->pool, opening->layout, present, arrays, error);
    if (code != STREAM_OK)
        return code;
    steps.index = index;
    steps.stride = opening->stride;
    code = send_steps(connection, &steps, error);
    return code == STREAM_OK ? sc_data_connection_take_answers(connection, &ignored, error) : code;
}

int sc_data_connection_send(sc_data_connection *connection, int64_t index, uint64_t present,
                            const sc_slice arrays[], bool *is_sent, sc_error *error) {
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

/* Retain what waited for company; false: no memory. */
static bool keep_pending(sc_data_connection *connection) {
    sc_steps steps;
    sc_error ignored;
    if (connection->pending.steps.num == 0)
        return true;
    return sc_pending_take(&connection->pending, &steps, &ignored) == STREAM_OK &&
           sc_retained_add(connection->retained, connection->flow.sequence + 1, &steps, &ignored) == STREAM_OK;
}

void sc_data_connection_leave(sc_data_connection *connection) {
    if (!keep_pending(connection))
        connection->retained->retention->has_lost = true;
    sc_pending_free(&connection->pending);
    sc_flow_control_free(&connection->flow);
    sc_bits_free(&connection->known);
    free(connection->stop_reason);
    free(connection->stale);
    connection->stop_reason = connection->stale = NULL;
}

void sc_data_connection_name(const sc_data_connection *connection, char *text, size_t num_bytes) {
    snprintf(text, num_bytes, "server rank %d at %s", connection->server_rank, connection->dealer->address);
}

/* The answers of a server rank on a data connection. */
#include <stdlib.h>

#include "data_connection.h"

#define MESSAGE_BYTES ((size_t)512 * 1024)
#define PENDING_BYTES ((size_t)16 * 1024 * 1024)

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

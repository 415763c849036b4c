#include "data_connection.h"

#include <stdio.h>
#include <stdlib.h>

#include "crc32.h"
#include "patience.h"
#include "steps.h"
#include "transport.h"

#define PENDING_S 0.005

static int send_message(sc_dealer *dealer, sc_data *data, const sc_frame *frames, int num_frames, sc_buffer *buffer,
                        sc_error *error) {
    data->has_checksum = dealer->needs_checksum;
    data->checksum = 0;
    for (int i = 0; i < num_frames && data->has_checksum; ++i)
        data->checksum = sc_crc32(data->checksum, frames[i].bytes, frames[i].num_bytes);
    return sc_dealer_send_data(dealer, data, frames, num_frames, buffer, error);
}

/* One frame for each present block: its rows of all steps. */
static int send_whole(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data *data,
                      sc_error *error) {
    sc_frame frames[SC_MAX_FIELDS];
    int num_frames = 0;
    uint8_t *rows = sc_steps_rows(steps, layout);
    for (int i = 0; i < layout->num_blocks; ++i) {
        if (!(steps->present >> i & 1))
            continue;
        size_t row_bytes = sc_steps_row_bytes(steps, layout, i);
        frames[num_frames++] = (sc_frame){rows, steps->num * row_bytes};
        rows += steps->num_rows * row_bytes;
    }
    data->field = SC_ALL_FIELDS;
    data->last = true;
    return send_message(dealer, data, frames, num_frames, steps->buffer, error);
}

/* One step, block by block, and each block in pieces. */
static int send_parts(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data *data,
                      sc_error *error) {
    uint8_t *next = sc_steps_rows(steps, layout);
    const uint8_t *end = next + sc_steps_step_bytes(steps, layout);
    for (int i = 0; i < layout->num_blocks; ++i) {
        size_t num_left = steps->present >> i & 1 ? sc_steps_row_bytes(steps, layout, i) : 0;
        data->field = i;
        for (data->offset = 0; num_left > 0; data->offset += SC_MAX_PART_BYTES) {
            sc_frame part = {next, num_left < SC_MAX_PART_BYTES ? num_left : SC_MAX_PART_BYTES};
            next += part.num_bytes;
            num_left -= part.num_bytes;
            data->last = next == end;
            int code = send_message(dealer, data, &part, 1, steps->buffer, error);
            if (code != STREAM_OK)
                return code;
            ++data->sequence;
        }
    }
    return STREAM_OK;
}

/* The first message's header, as far as it is known before: simulation, attempt, incarnation and sequence. The number of
 * messages that it took is in *num_messages. */
static int send_messages(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data data,
                         int64_t *num_messages, sc_error *error) {
    data.index = steps->index;
    data.present = steps->present;
    data.num_steps = steps->num;
    *num_messages = 1;
    if (steps->num > 1 || sc_steps_step_bytes(steps, layout) <= SC_MAX_PART_BYTES)
        return send_whole(dealer, layout, steps, &data, error);
    int64_t first = data.sequence;
    int code = send_parts(dealer, layout, steps, &data, error);
    *num_messages = data.sequence - first;
    return code;
}

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
    code = send_parts(connection->dealer, &statics->layout, &steps, &data, error);
    sc_steps_release(&steps);
    if (code != STREAM_OK)
        return code;
    return sc_flow_control_sent(&connection->flow, 0, data.sequence - connection->flow.sequence, error);
}

/* Send steps, and keep them. */
static int send_steps(sc_data_connection *connection, sc_steps *steps, sc_error *error) {
    int64_t num_messages;
    uint32_t num_steps = steps->num;
    int code = sc_data_connection_send_statics(connection, error);
    if (code == STREAM_OK)
        code = send_messages(connection->dealer, connection->opening->layout, steps, next_data(connection),
                             &num_messages, error);
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

#include "step_messages.h"

bool sc_pending_fits(const sc_pending *pending, int64_t index, uint64_t present) {
    const sc_steps *steps = &pending->steps;
    return steps->num == 0 || (present == steps->present && index == steps->index + steps->num * steps->stride);
}

/* Make room for steps with these blocks: new, or left by the last ones. */
static int begin(sc_pending *pending, int64_t index, uint64_t present, sc_error *error) {
    sc_steps *steps = &pending->steps;
    if (steps->buffer == NULL || steps->present != present) {
        sc_steps_release(steps);
        int code = sc_steps_begin(steps, pending->pool, pending->layout, present, pending->capacity, error);
        if (code != STREAM_OK)
            return code;
    }
    steps->index = index;
    steps->stride = pending->stride;
    return STREAM_OK;
}

int sc_pending_add(sc_pending *pending, int64_t index, uint64_t present, const sc_slice arrays[], sc_error *error) {
    if (pending->steps.num == 0) {
        int code = begin(pending, index, present, error);
        if (code != STREAM_OK)
            return code;
    }
    sc_steps_add(&pending->steps, pending->layout, arrays);
    return STREAM_OK;
}

/* Whether so little of the buffer is unused that it may be kept as it is. */
static bool is_about_full(const sc_pending *pending) {
    return pending->capacity - pending->steps.num <= pending->capacity / 8;
}

int sc_pending_take(sc_pending *pending, sc_steps *steps, sc_error *error) {
    if (is_about_full(pending)) {
        *steps = pending->steps;
        pending->steps = (sc_steps){.num = 0};
        return STREAM_OK;
    }
    int code = sc_steps_fit(&pending->steps, steps, pending->pool, pending->layout, error);
    if (code == STREAM_OK)
        pending->steps.num = 0;
    return code;
}

void sc_pending_free(sc_pending *pending) {
    sc_steps_release(&pending->steps);
}

static int send_message(sc_dealer *dealer, sc_data *data, const sc_frame *frames, int num_frames, sc_buffer *buffer,
                        sc_error *error) {
    data->has_checksum = dealer->needs_checksum;
    data->checksum = 0;
    for (int i = 0; i < num_frames && data->has_checksum; ++i)
        data->checksum = sc_crc32(data->checksum, frames[i].bytes, frames[i].num_bytes);
    return sc_dealer_send_data(dealer, data, frames, num_frames, buffer, error);
}

/* Whether each of these lies where the one before it ends. */
static bool are_one_piece(const sc_frame *frames, int num_frames) {
    for (int i = 1; i < num_frames; ++i)
        if (frames[i].bytes != frames[i - 1].bytes + frames[i - 1].num_bytes)
            return false;
    return true;
}

/* One frame for each present block: its rows of all steps. Where the server reads the segment, one that tells where
 * they are. */
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
    data->in_segment &= are_one_piece(frames, num_frames);
    if (data->in_segment)
        return sc_dealer_send_place(dealer, data, (uint64_t)(frames[0].bytes - steps->buffer->segment->bytes), error);
    return send_message(dealer, data, frames, num_frames, steps->buffer, error);
}

int sc_send_parts(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data *data, sc_error *error) {
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

int sc_send_steps(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data data,
                  int64_t *num_messages, sc_error *error) {
    data.index = steps->index;
    data.present = steps->present;
    data.num_steps = steps->num;
    data.in_segment &= steps->buffer->segment != NULL;
    *num_messages = 1;
    if (steps->num > 1 || sc_steps_step_bytes(steps, layout) <= SC_MAX_PART_BYTES || data.in_segment)
        return send_whole(dealer, layout, steps, &data, error);
    int64_t first = data.sequence;
    int code = sc_send_parts(dealer, layout, steps, &data, error);
    *num_messages = data.sequence - first;
    return code;
}

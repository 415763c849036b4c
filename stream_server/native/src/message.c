#include "message.h"

#include "crc32.h"

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
    uint8_t *rows = steps->buffer->bytes;
    for (int i = 0; i < layout->num_blocks; ++i) {
        if (!(steps->present >> i & 1))
            continue;
        frames[num_frames++] = (sc_frame){rows, steps->num * layout->block_bytes[i]};
        rows += steps->num_rows * layout->block_bytes[i];
    }
    data->field = SC_ALL_FIELDS;
    data->last = true;
    return send_message(dealer, data, frames, num_frames, steps->buffer, error);
}

/* One step, block by block, and each block in pieces. */
static int send_parts(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data *data,
                      sc_error *error) {
    uint8_t *next = steps->buffer->bytes;
    const uint8_t *end = next + sc_layout_bytes(layout, steps->present);
    for (int i = 0; i < layout->num_blocks; ++i) {
        size_t num_left = steps->present >> i & 1 ? layout->block_bytes[i] : 0;
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
    *num_messages = 1;
    if (steps->num > 1 || sc_layout_bytes(layout, steps->present) <= SC_MAX_PART_BYTES)
        return send_whole(dealer, layout, steps, &data, error);
    int64_t first = data.sequence;
    int code = send_parts(dealer, layout, steps, &data, error);
    *num_messages = data.sequence - first;
    return code;
}

#include "steps.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE_BYTES 64
/* Less than that the processor fetches ahead as quickly. */
#define LEAST_BYTES 16384

static void copy_line(char *to, const char *from) {
    __m128i parts[4];
    memcpy(parts, from, sizeof parts);
    for (int i = 0; i < 4; ++i)
        _mm_stream_si128((__m128i *)(void *)(to + 16 * i), parts[i]);
}

/* memcpy past the caches, where the processor can do so. Of two memories that are not in the cache it reads one and
 * writes one, while memcpy reads both: half the time for 40 kB (measured). */
static void copy_past_cache(void *to, const void *from, size_t num_bytes) {
    char *next = to;
    const char *source = from;
    if (num_bytes < LEAST_BYTES) {
        memcpy(to, from, num_bytes);
        return;
    }
    size_t before = -(uintptr_t)next % LINE_BYTES, in_lines = (num_bytes - before) / LINE_BYTES * LINE_BYTES;
    memcpy(next, source, before);
    for (size_t at = before; at < before + in_lines; at += LINE_BYTES)
        copy_line(next + at, source + at);
    memcpy(next + before + in_lines, source + before + in_lines, num_bytes - before - in_lines);
    /* Other threads must not see the lines later than what tells of them. */
    _mm_sfence();
}

#else

static void copy_past_cache(void *to, const void *from, size_t num_bytes) {
    memcpy(to, from, num_bytes);
}

#endif

sc_layout sc_layout_of(const sc_block *blocks, int num_blocks) {
    sc_layout layout = {.num_blocks = num_blocks};
    for (int i = 0; i < num_blocks; ++i) {
        layout.block_bytes[i] = sc_block_bytes(&blocks[i]);
        layout.has_ragged |= blocks[i].ragged;
    }
    return layout;
}

size_t sc_layout_bytes(const sc_layout *layout, uint64_t present) {
    size_t num_bytes = 0;
    for (int i = 0; i < layout->num_blocks; ++i)
        if (present >> i & 1 && __builtin_add_overflow(num_bytes, layout->block_bytes[i], &num_bytes))
            return SIZE_MAX;
    return num_bytes;
}

/* The sizes of the blocks of a single step, at the beginning of its buffer. */
static size_t sizes_bytes(const sc_layout *layout) {
    return layout->has_ragged ? (size_t)layout->num_blocks * sizeof(size_t) : 0;
}

uint8_t *sc_steps_rows(const sc_steps *steps, const sc_layout *layout) {
    return steps->buffer->bytes + sizes_bytes(layout);
}

size_t sc_steps_row_bytes(const sc_steps *steps, const sc_layout *layout, int i) {
    size_t num_bytes = layout->block_bytes[i];
    if (layout->has_ragged)
        memcpy(&num_bytes, steps->buffer->bytes + (size_t)i * sizeof num_bytes, sizeof num_bytes);
    return num_bytes;
}

size_t sc_steps_step_bytes(const sc_steps *steps, const sc_layout *layout) {
    size_t num_bytes = 0;
    for (int i = 0; i < layout->num_blocks; ++i)
        num_bytes += steps->present >> i & 1 ? sc_steps_row_bytes(steps, layout, i) : 0;
    return num_bytes;
}

int sc_steps_begin(sc_steps *steps, sc_pool *pool, const sc_layout *layout, uint64_t present, uint32_t num_rows,
                   sc_error *error) {
    size_t num_bytes;
    *steps = (sc_steps){.present = present, .num_rows = num_rows};
    if (!__builtin_mul_overflow(sc_layout_bytes(layout, present), num_rows, &num_bytes))
        steps->buffer = sc_buffer_new(pool, num_bytes);
    return steps->buffer == NULL ? sc_no_memory(error) : STREAM_OK;
}

void sc_steps_release(sc_steps *steps) {
    if (steps->buffer != NULL)
        sc_buffer_release(steps->buffer);
    steps->buffer = NULL;
}

static void copy(const sc_buffer *buffer, uint8_t *to, const void *from, size_t num_bytes) {
    if (buffer->is_cold)
        copy_past_cache(to, from, num_bytes);
    else
        memcpy(to, from, num_bytes);
}

void sc_steps_add(sc_steps *steps, const sc_layout *layout, const sc_slice arrays[]) {
    uint8_t *rows = sc_steps_rows(steps, layout);
    for (int i = 0; i < layout->num_blocks; ++i) {
        if (!(steps->present >> i & 1))
            continue;
        size_t num_bytes = arrays[i].num_bytes;
        if (layout->has_ragged)
            memcpy(steps->buffer->bytes + (size_t)i * sizeof num_bytes, &num_bytes, sizeof num_bytes);
        copy(steps->buffer, rows + steps->num * num_bytes, arrays[i].bytes, num_bytes);
        rows += steps->num_rows * num_bytes;
    }
    ++steps->num;
}

int sc_steps_single(sc_steps *steps, sc_pool *pool, const sc_layout *layout, uint64_t present, const sc_slice arrays[],
                    sc_error *error) {
    size_t num_bytes = sizes_bytes(layout);
    *steps = (sc_steps){.present = present, .num_rows = 1};
    for (int i = 0; i < layout->num_blocks; ++i)
        if (present >> i & 1 && __builtin_add_overflow(num_bytes, arrays[i].num_bytes, &num_bytes))
            return sc_no_memory(error);
    steps->buffer = sc_buffer_new(pool, num_bytes);
    if (steps->buffer == NULL)
        return sc_no_memory(error);
    sc_steps_add(steps, layout, arrays);
    return STREAM_OK;
}

void sc_steps_arrays(const sc_steps *steps, const sc_layout *layout, uint32_t row, sc_slice arrays[]) {
    const uint8_t *rows = sc_steps_rows(steps, layout);
    for (int i = 0; i < layout->num_blocks; ++i) {
        arrays[i] = (sc_slice){NULL, 0};
        if (!(steps->present >> i & 1))
            continue;
        size_t num_bytes = sc_steps_row_bytes(steps, layout, i);
        arrays[i] = (sc_slice){rows + row * num_bytes, num_bytes};
        rows += steps->num_rows * num_bytes;
    }
}

int sc_steps_fit(const sc_steps *steps, sc_steps *fitting, sc_pool *pool, const sc_layout *layout, sc_error *error) {
    int code = sc_steps_begin(fitting, pool, layout, steps->present, steps->num, error);
    if (code != STREAM_OK)
        return code;
    sc_slice rows[SC_MAX_FIELDS];
    sc_steps_arrays(steps, layout, 0, rows);
    uint8_t *to = fitting->buffer->bytes;
    for (int i = 0; i < layout->num_blocks; ++i) {
        if (rows[i].bytes == NULL)
            continue;
        memcpy(to, rows[i].bytes, steps->num * layout->block_bytes[i]);
        to += steps->num * layout->block_bytes[i];
    }
    fitting->num = steps->num;
    fitting->index = steps->index;
    fitting->stride = steps->stride;
    return STREAM_OK;
}

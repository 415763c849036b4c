#include "copy.h"

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

void sc_copy_past_cache(void *to, const void *from, size_t num_bytes) {
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

void sc_copy_past_cache(void *to, const void *from, size_t num_bytes) {
    memcpy(to, from, num_bytes);
}

#endif

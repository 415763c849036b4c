#define _POSIX_C_SOURCE 200809L
#include "text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The range of the second byte excludes what has a shorter form, the surrogates and what is above U+10FFFF. */
static size_t lead(uint8_t first, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xbf;
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef) {
        if (first == 0xe0)
            *low = 0xa0;
        if (first == 0xed)
            *high = 0x9f;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (first == 0xf0)
            *low = 0x90;
        if (first == 0xf4)
            *high = 0x8f;
        return 4;
    }
    return 0;
}

size_t sc_character_bytes(const uint8_t *bytes, size_t num_bytes) {
    if (num_bytes == 0)
        return 0;
    uint8_t low, high;
    size_t length = lead(bytes[0], &low, &high);
    if (length > num_bytes)
        return 0;
    if (length > 1 && (bytes[1] < low || bytes[1] > high))
        return 0;
    for (size_t i = 2; i < length; ++i)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

bool sc_is_utf8(const uint8_t *bytes, size_t num_bytes) {
    while (num_bytes > 0) {
        size_t length = sc_character_bytes(bytes, num_bytes);
        if (length == 0)
            return false;
        bytes += length;
        num_bytes -= length;
    }
    return true;
}

char *sc_copy_slice(sc_slice slice) {
    char *copy = malloc(slice.num_bytes + 1);
    if (copy == NULL)
        return NULL;
    if (slice.num_bytes > 0)
        memcpy(copy, slice.bytes, slice.num_bytes);
    copy[slice.num_bytes] = '\0';
    return copy;
}

char *sc_copy_text(const char *text) {
    return sc_copy_slice((sc_slice){(const uint8_t *)text, strlen(text)});
}

static int compare(const void *left, const void *right) {
    const sc_slice *a = left, *b = right;
    if (a->num_bytes != b->num_bytes)
        return a->num_bytes < b->num_bytes ? -1 : 1;
    return a->num_bytes == 0 ? 0 : memcmp(a->bytes, b->bytes, a->num_bytes);
}

bool sc_any_twice(sc_slice *slices, size_t num) {
    if (num < 2)
        return false;
    qsort(slices, num, sizeof *slices, compare);
    for (size_t i = 1; i < num; ++i)
        if (compare(&slices[i - 1], &slices[i]) == 0)
            return true;
    return false;
}

void sc_new_name(char name[SC_NAME_BYTES]) {
    uint8_t bytes[(SC_NAME_BYTES - 1) / 2];
    int source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t num_read = source < 0 ? -1 : read(source, bytes, sizeof bytes);
    if (source >= 0)
        close(source);
    name[0] = '\0';
    for (size_t i = 0; num_read == (ssize_t)sizeof bytes && i < sizeof bytes; ++i)
        snprintf(name + 2 * i, 3, "%02x", (unsigned)bytes[i]);
}

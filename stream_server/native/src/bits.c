#include "bits.h"

#include <stdlib.h>
#include <string.h>

static bool grow(sc_bits *bits, size_t num_bytes) {
    size_t roomy = bits->num_bytes + bits->num_bytes / 2;
    if (num_bytes < roomy)
        num_bytes = roomy;
    uint8_t *bytes = realloc(bits->bytes, num_bytes);
    if (bytes == NULL)
        return false;
    memset(bytes + bits->num_bytes, 0, num_bytes - bits->num_bytes);
    bits->bytes = bytes;
    bits->num_bytes = num_bytes;
    return true;
}

bool sc_bits_has(const sc_bits *bits, int64_t number) {
    if (number < 0)
        return false;
    uint64_t byte = (uint64_t)number >> 3;
    return byte < bits->num_bytes && (bits->bytes[byte] >> (number & 7) & 1);
}

int sc_bits_add(sc_bits *bits, int64_t number) {
    if (number < 0 || (uint64_t)number >> 3 >= SIZE_MAX)
        return -1;
    if (sc_bits_has(bits, number))
        return 0;
    size_t byte = (size_t)((uint64_t)number >> 3);
    if (byte >= bits->num_bytes && !grow(bits, byte + 1))
        return -1;
    bits->bytes[byte] |= (uint8_t)(1 << (number & 7));
    return 1;
}

bool sc_bits_load(sc_bits *bits, const uint8_t *bytes, size_t num_bytes) {
    uint8_t *copy = NULL;
    if (num_bytes > 0) {
        copy = malloc(num_bytes);
        if (copy == NULL)
            return false;
        memcpy(copy, bytes, num_bytes);
    }
    free(bits->bytes);
    bits->bytes = copy;
    bits->num_bytes = num_bytes;
    return true;
}

void sc_bits_free(sc_bits *bits) {
    free(bits->bytes);
    bits->bytes = NULL;
    bits->num_bytes = 0;
}

static bool grow_order(sc_entered *entered) {
    size_t capacity = entered->capacity == 0 ? 64 : 2 * entered->capacity;
    int64_t *order = realloc(entered->order, capacity * sizeof *order);
    if (order == NULL)
        return false;
    entered->order = order;
    entered->capacity = capacity;
    return true;
}

int sc_entered_add(sc_entered *entered, int64_t index) {
    if (entered->num == entered->capacity && !grow_order(entered))
        return -1;
    int is_new = sc_bits_add(&entered->bits, index);
    if (is_new == 1)
        entered->order[entered->num++] = index;
    return is_new;
}

void sc_entered_free(sc_entered *entered) {
    sc_bits_free(&entered->bits);
    free(entered->order);
    *entered = (sc_entered){.num = 0};
}

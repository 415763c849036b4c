/* Memory that the server ranks of this node read, too: what lies in it is sent by telling where.
 *
 * Why: docs/decisions/0022-native-client.md */
#ifndef SC_SEGMENT_H
#define SC_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

/* Others find it as `descriptor` of `process`, and know it by its first 16 bytes, the `token`. */
typedef struct {
    int64_t process;
    int descriptor;
    size_t num_bytes;
    char token[SC_NAME_BYTES];
    uint8_t *bytes;
    size_t num_carved;
    size_t num_huge; /* bytes for which there are huge pages, as far as the system gave some; SIZE_MAX: it has none */
    size_t num_owners;
} sc_segment;

/* With one owner. It takes no memory until it is written to. NULL: it cannot be had, or the process has a limit that it
 * could exceed. */
sc_segment *sc_segment_new(size_t num_bytes);
/* One owner less. What was written stays for those who have opened it. */
void sc_segment_release(sc_segment *segment);

/* Memory that was not given out yet, at the beginning of a cache line; NULL: neither here nor in the system is so much. */
uint8_t *sc_segment_carve(sc_segment *segment, size_t num_bytes);

/* Give the pages that lie in these bytes back to the system. */
void sc_segment_give_back(uint8_t *bytes, size_t num_bytes);
/* Have the system give pages for these bytes, before they are written to; false: it has none left, and a write would
 * end the process. */
bool sc_segment_allocate(const sc_segment *segment, const uint8_t *bytes, size_t num_bytes);

#endif

/* Memory for messages: ZeroMQ sends from it while the retention keeps it, and what both have let go of is used again.
 *
 * Pages that the system has just handed out cost ten times as much to write to as those that were used before.
 *
 * Why: docs/decisions/0022-native-client.md */
#ifndef SC_BUFFER_H
#define SC_BUFFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "segment.h"

/* Hands out buffers, and keeps those that come back for the next one of their size. Never holds more memory than was
 * in use at once, and what is left of a huge page. Large ones lie in its segment, as long as it has one with room. */
typedef struct sc_pool sc_pool;

typedef struct sc_buffer {
    atomic_uint num_owners;
    sc_pool *pool;
    sc_segment *segment; /* NULL: it lies in none */
    struct sc_buffer *next;
    uint64_t given_at; /* what the pool had given out by then, in bytes */
    uint8_t *bytes;
    int size_class;
    bool is_cold; /* it was used so long ago that it is in no cache near by */
} sc_buffer;

/* NULL: no memory. */
sc_pool *sc_pool_new(void);

/* The pool ends with the last of its buffers. NULL does nothing. */
void sc_pool_close(sc_pool *pool);

/* The segment of the pool, which is made if it has none; NULL: it cannot be had. */
const sc_segment *sc_pool_share(sc_pool *pool, size_t num_bytes);
/* Let go of the segment, and of all memory that is not in use. What the segment holds stays as it is: others may be about
 * to read it. */
void sc_pool_unshare(sc_pool *pool);

/* A buffer with one owner; NULL: no memory. Its content is not defined. */
sc_buffer *sc_buffer_new(sc_pool *pool, size_t num_bytes);

/* One more owner, one less. From any thread. */
void sc_buffer_hold(sc_buffer *buffer);
void sc_buffer_release(sc_buffer *buffer);

#endif

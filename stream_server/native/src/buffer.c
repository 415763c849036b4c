#define _DEFAULT_SOURCE
#include "buffer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Four sizes for each power of two, from 64 bytes on; the last ones are out of reach. */
#define SMALLEST_SHIFT 6
#define SIZES_PER_OCTAVE 4
#define NUM_CLASSES ((63 - SMALLEST_SHIFT) * SIZES_PER_OCTAVE)
#define LINE_BYTES 64
/* Less than that is mostly memory that was used before. */
#define POPULATED_BYTES ((size_t)128 * 1024)
/* Less than that goes through a socket as quickly. */
#define SHARED_BYTES ((size_t)64 * 1024)

/* The size of a core's own cache, about. */
#define COLD_BYTES ((uint64_t)4 * 1024 * 1024)

struct sc_pool {
    pthread_mutex_t mutex;
    bool is_closed;
    size_t num_in_use;
    size_t num_free_bytes;
    uint64_t num_bytes_given;
    sc_buffer *free[NUM_CLASSES];
    sc_segment *segment;
    sc_buffer *empty[NUM_CLASSES]; /* those of the segment whose pages were given back */
};

static size_t class_bytes(int size_class) {
    size_t octave = (size_t)1 << (SMALLEST_SHIFT + size_class / SIZES_PER_OCTAVE);
    return octave + octave / SIZES_PER_OCTAVE * (size_t)(size_class % SIZES_PER_OCTAVE);
}

/* The first class that is large enough; NUM_CLASSES if none is. */
static int class_of(size_t num_bytes) {
    if (num_bytes <= (size_t)1 << SMALLEST_SHIFT)
        return 0;
    int octave = 63 - __builtin_clzll((unsigned long long)num_bytes);
    int size_class = (octave - SMALLEST_SHIFT) * SIZES_PER_OCTAVE;
    while (size_class < NUM_CLASSES && class_bytes(size_class) < num_bytes)
        ++size_class;
    return size_class;
}

sc_pool *sc_pool_new(void) {
    sc_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL && pthread_mutex_init(&pool->mutex, NULL) != 0) {
        free(pool);
        return NULL;
    }
    return pool;
}

/* Take a free buffer of this class off its list, or NULL. With the mutex. */
static sc_buffer *taken(sc_pool *pool, int size_class) {
    sc_buffer *buffer = pool->free[size_class];
    if (buffer != NULL) {
        pool->free[size_class] = buffer->next;
        pool->num_free_bytes -= class_bytes(size_class);
    }
    return buffer;
}

/* Give the memory of a buffer back to the system, unless it lies in a segment that the pool has left. With the mutex. */
static void discard(sc_pool *pool, sc_buffer *buffer) {
    if (buffer->segment == NULL) {
        free(buffer);
    } else if (buffer->segment == pool->segment) {
        sc_segment_give_back(buffer->bytes, class_bytes(buffer->size_class));
        buffer->given_at = 0;
        buffer->next = pool->empty[buffer->size_class];
        pool->empty[buffer->size_class] = buffer;
    }
}

/* Give so many free bytes back to the system, as far as there are some. With the mutex. */
static void trim(sc_pool *pool, size_t num_bytes) {
    size_t num_left = pool->num_free_bytes > num_bytes ? pool->num_free_bytes - num_bytes : 0;
    for (int size_class = NUM_CLASSES - 1; size_class >= 0 && pool->num_free_bytes > num_left; --size_class)
        while (pool->num_free_bytes > num_left && pool->free[size_class] != NULL)
            discard(pool, taken(pool, size_class));
}

const sc_segment *sc_pool_share(sc_pool *pool, size_t num_bytes) {
    pthread_mutex_lock(&pool->mutex);
    if (pool->segment == NULL)
        pool->segment = sc_segment_new(num_bytes);
    pthread_mutex_unlock(&pool->mutex);
    return pool->segment;
}

/* With the mutex. */
static void let_go_of_all(sc_pool *pool) {
    sc_segment *segment = pool->segment;
    pool->segment = NULL;
    trim(pool, pool->num_free_bytes);
    memset(pool->empty, 0, sizeof pool->empty);
    if (segment != NULL)
        sc_segment_release(segment);
}

void sc_pool_unshare(sc_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    let_go_of_all(pool);
    pthread_mutex_unlock(&pool->mutex);
}

static void end(sc_pool *pool) {
    let_go_of_all(pool);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void sc_pool_close(sc_pool *pool) {
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->is_closed = true;
    bool is_last = pool->num_in_use == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (is_last)
        end(pool);
}

/* Make the system hand out these pages at once: that takes half the time of one after the other. */
static void populate(void *memory, size_t num_bytes) {
#ifdef MADV_POPULATE_WRITE
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)memory & ~(page_bytes - 1);
    /* Systems that cannot do so do it when the pages are written to. */
    (void)madvise((void *)first, (uintptr_t)memory + num_bytes - first, MADV_POPULATE_WRITE);
#else
    (void)memory;
    (void)num_bytes;
#endif
}

static sc_buffer *placed(sc_pool *pool, sc_segment *segment, int size_class, void *memory) {
    sc_buffer *buffer = memory;
    buffer->pool = pool;
    buffer->segment = segment;
    buffer->size_class = size_class;
    buffer->given_at = 0;
    buffer->bytes = (uint8_t *)memory + LINE_BYTES;
    return buffer;
}

/* A buffer of the segment that was never used, or as if it were so; NULL: there is none. With the mutex. */
static sc_buffer *carved(sc_pool *pool, int size_class) {
    if (pool->segment == NULL || class_bytes(size_class) < SHARED_BYTES)
        return NULL;
    sc_buffer *buffer = pool->empty[size_class];
    if (buffer != NULL) {
        if (!sc_segment_allocate(pool->segment, buffer->bytes, class_bytes(size_class)))
            return NULL;
        pool->empty[size_class] = buffer->next;
        return buffer;
    }
    void *memory = sc_segment_carve(pool->segment, LINE_BYTES + class_bytes(size_class));
    return memory == NULL ? NULL : placed(pool, pool->segment, size_class, memory);
}

static sc_buffer *allocated(sc_pool *pool, int size_class) {
    void *memory;
    if (posix_memalign(&memory, LINE_BYTES, LINE_BYTES + class_bytes(size_class)) != 0)
        return NULL;
    return placed(pool, NULL, size_class, memory);
}

sc_buffer *sc_buffer_new(sc_pool *pool, size_t num_bytes) {
    _Static_assert(sizeof(sc_buffer) <= LINE_BYTES, "the bytes follow in the next cache line");
    int size_class = class_of(num_bytes);
    if (size_class >= NUM_CLASSES)
        return NULL;
    pthread_mutex_lock(&pool->mutex);
    sc_buffer *buffer = taken(pool, size_class);
    uint64_t num_bytes_given = pool->num_bytes_given += num_bytes;
    if (buffer == NULL) {
        trim(pool, class_bytes(size_class));
        buffer = carved(pool, size_class);
    }
    if (buffer != NULL && buffer->segment != NULL)
        ++buffer->segment->num_owners;
    ++pool->num_in_use;
    pthread_mutex_unlock(&pool->mutex);
    if (buffer == NULL && (buffer = allocated(pool, size_class)) == NULL) {
        pthread_mutex_lock(&pool->mutex);
        --pool->num_in_use;
        pthread_mutex_unlock(&pool->mutex);
        return NULL;
    }
    bool is_new = buffer->given_at == 0;
    if (is_new && num_bytes >= POPULATED_BYTES)
        populate(buffer, LINE_BYTES + num_bytes);
    atomic_init(&buffer->num_owners, 1);
    /* The system has just written zeros to a new one. */
    buffer->is_cold = !is_new && num_bytes_given - buffer->given_at > COLD_BYTES;
    buffer->given_at = num_bytes_given;
    return buffer;
}

void sc_buffer_hold(sc_buffer *buffer) {
    atomic_fetch_add_explicit(&buffer->num_owners, 1, memory_order_relaxed);
}

void sc_buffer_release(sc_buffer *buffer) {
    /* The next user of the memory must see that the others are done with it. */
    if (atomic_fetch_sub_explicit(&buffer->num_owners, 1, memory_order_acq_rel) != 1)
        return;
    sc_pool *pool = buffer->pool;
    pthread_mutex_lock(&pool->mutex);
    sc_segment *segment = buffer->segment;
    if (segment == NULL || segment == pool->segment) {
        buffer->next = pool->free[buffer->size_class];
        pool->free[buffer->size_class] = buffer;
        pool->num_free_bytes += class_bytes(buffer->size_class);
    }
    if (segment != NULL)
        sc_segment_release(segment);
    bool is_last = --pool->num_in_use == 0 && pool->is_closed;
    pthread_mutex_unlock(&pool->mutex);
    if (is_last)
        end(pool);
}

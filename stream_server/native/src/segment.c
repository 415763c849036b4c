#define _GNU_SOURCE
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define LINE_BYTES 64
#define TOKEN_BYTES ((SC_NAME_BYTES - 1) / 2)
/* Where huge pages are larger, there are none. */
#define HUGE_BYTES ((size_t)2 * 1024 * 1024)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Whether it may be so large: a file beyond its limit ends the process, and addresses that are limited are left to
 * those who need them. */
static bool is_allowed(size_t num_bytes) {
    struct rlimit file, addresses;
    return getrlimit(RLIMIT_FSIZE, &file) == 0 && getrlimit(RLIMIT_AS, &addresses) == 0 &&
           (file.rlim_cur == RLIM_INFINITY || file.rlim_cur >= num_bytes) && addresses.rlim_cur == RLIM_INFINITY;
}

/* A file without a name, or -1. */
static int make_file(size_t num_bytes) {
#ifdef MFD_CLOEXEC
    int descriptor = memfd_create("stream-server", MFD_CLOEXEC);
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)num_bytes) == 0)
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
#else
    (void)num_bytes;
#endif
    return -1;
}

/* Map the file where a huge page may begin, within a place that nobody else can take meanwhile. */
static uint8_t *map_aligned(int descriptor, size_t num_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    num_bytes = (num_bytes + page - 1) / page * page;
    uint8_t *place = mmap(NULL, num_bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)place % HUGE_BYTES;
    void *bytes = mmap(place + before, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                       descriptor, 0);
    if (bytes == MAP_FAILED) {
        munmap(place, num_bytes + HUGE_BYTES);
        return NULL;
    }
    if (before > 0)
        munmap(place, before);
    munmap(place + before + num_bytes, HUGE_BYTES - before);
    return bytes;
}

static bool map(sc_segment *segment) {
    if (segment->token[0] != '\0' && is_allowed(segment->num_bytes))
        segment->descriptor = make_file(segment->num_bytes);
    if (segment->descriptor >= 0)
        segment->bytes = map_aligned(segment->descriptor, segment->num_bytes);
    return segment->bytes != NULL;
}

sc_segment *sc_segment_new(size_t num_bytes) {
    sc_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return NULL;
    *segment = (sc_segment){
        .process = getpid(), .descriptor = -1, .num_bytes = num_bytes, .num_carved = TOKEN_BYTES, .num_owners = 1};
    sc_new_name(segment->token);
    if (!map(segment) || !sc_segment_allocate(segment, segment->bytes, TOKEN_BYTES)) {
        sc_segment_release(segment);
        return NULL;
    }
    for (int i = 0; i < TOKEN_BYTES; ++i)
        sscanf(segment->token + 2 * i, "%2hhx", &segment->bytes[i]);
    return segment;
}

void sc_segment_release(sc_segment *segment) {
    if (--segment->num_owners > 0)
        return;
    if (segment->bytes != NULL)
        munmap(segment->bytes, segment->num_bytes);
    if (segment->descriptor >= 0)
        close(segment->descriptor);
    free(segment);
}

/* Have huge pages up to there, until the system has none. They take a fifth of the time of small ones, which are all that
 * fallocate and a write give. */
static void take_huge_pages(sc_segment *segment, size_t num_bytes) {
    while (segment->num_huge < num_bytes && segment->num_huge + HUGE_BYTES <= segment->num_bytes) {
        uint8_t *next = segment->bytes + segment->num_huge;
        segment->num_huge += HUGE_BYTES;
        /* It is made of the pages that are there: one at least. */
        if (!sc_segment_allocate(segment, next, 1) ||
            (madvise(next, HUGE_BYTES, MADV_COLLAPSE) != 0 && errno != EAGAIN))
            segment->num_huge = SIZE_MAX;
    }
}

uint8_t *sc_segment_carve(sc_segment *segment, size_t num_bytes) {
    size_t first = (segment->num_carved + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint8_t *bytes = segment->bytes + first;
    if (first > segment->num_bytes || num_bytes > segment->num_bytes - first)
        return NULL;
    take_huge_pages(segment, first + num_bytes);
    if (!sc_segment_allocate(segment, bytes, num_bytes))
        return NULL;
    segment->num_carved = first + num_bytes;
    return bytes;
}

bool sc_segment_allocate(const sc_segment *segment, const uint8_t *bytes, size_t num_bytes) {
    return fallocate(segment->descriptor, 0, bytes - segment->bytes, (off_t)num_bytes) == 0;
}

void sc_segment_give_back(uint8_t *bytes, size_t num_bytes) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = -(uintptr_t)bytes % page_bytes;
    if (num_bytes > before)
        (void)madvise(bytes + before, (num_bytes - before) / page_bytes * page_bytes, MADV_REMOVE);
}

/* Memory for messages: what a server on this node can read of it, and when it is used again. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buffer.h"
#include "check.h"

#define MIB ((size_t)1024 * 1024)

static const sc_segment *shared(sc_pool *pool, size_t num_bytes) {
    const sc_segment *segment = sc_pool_share(pool, num_bytes);
    CHECK(segment != NULL && segment == sc_pool_share(pool, num_bytes));
    return segment;
}

static sc_buffer *filled(sc_pool *pool, size_t num_bytes, int value) {
    sc_buffer *buffer = sc_buffer_new(pool, num_bytes);
    CHECK(buffer != NULL);
    memset(buffer->bytes, value, num_bytes);
    return buffer;
}

static off_t offset_of(const sc_segment *segment, const sc_buffer *buffer) {
    CHECK(buffer->segment == segment && buffer->bytes > segment->bytes);
    return buffer->bytes - segment->bytes;
}

static unsigned char byte_at(int descriptor, off_t offset) {
    unsigned char byte;
    CHECK(pread(descriptor, &byte, 1, offset) == 1);
    return byte;
}

static size_t num_bytes_taken(const sc_segment *segment) {
    struct stat status;
    CHECK(fstat(segment->descriptor, &status) == 0);
    return (size_t)status.st_blocks * 512;
}

static void what_lies_in_a_segment_can_be_read_through_its_descriptor(void) {
    sc_pool *pool = sc_pool_new();
    const sc_segment *segment = shared(pool, 4 * MIB);
    sc_buffer *buffer = filled(pool, 65536, 7);
    CHECK(segment->process == getpid() && segment->num_bytes == 4 * MIB);
    CHECK(byte_at(segment->descriptor, offset_of(segment, buffer)) == 7);
    CHECK(byte_at(segment->descriptor, offset_of(segment, buffer) + 65535) == 7);
    sc_buffer_release(buffer);
    sc_pool_close(pool);
}

static void a_segment_begins_with_its_token(void) {
    sc_pool *pool = sc_pool_new();
    const sc_segment *segment = shared(pool, MIB);
    char digits[33];
    for (int i = 0; i < 16; ++i)
        snprintf(digits + 2 * i, 3, "%02x", byte_at(segment->descriptor, i));
    CHECK(strcmp(digits, segment->token) == 0);
    sc_pool_close(pool);
}

static void small_buffers_lie_in_no_segment_and_neither_do_those_it_has_no_room_for(void) {
    sc_pool *pool = sc_pool_new();
    shared(pool, MIB);
    sc_buffer *small = filled(pool, 1000, 1), *first = filled(pool, MIB / 2, 2), *second = filled(pool, MIB / 2, 3);
    CHECK(small->segment == NULL && first->segment != NULL && second->segment == NULL);
    CHECK(first->bytes[MIB / 2 - 1] == 2);
    sc_buffer_release(small);
    sc_buffer_release(first);
    sc_buffer_release(second);
    sc_pool_close(pool);
}

static void without_a_segment_buffers_are_as_ever(void) {
    sc_pool *pool = sc_pool_new();
    sc_buffer *buffer = filled(pool, MIB, 1);
    CHECK(buffer->segment == NULL);
    sc_buffer_release(buffer);
    sc_pool_close(pool);
}

static void the_memory_of_a_segment_is_used_again_and_given_back_for_another_size(void) {
    sc_pool *pool = sc_pool_new();
    const sc_segment *segment = shared(pool, 16 * MIB);
    sc_buffer *buffer = filled(pool, MIB, 1);
    off_t first = offset_of(segment, buffer);
    sc_buffer_release(buffer);
    buffer = filled(pool, MIB, 2);
    CHECK(offset_of(segment, buffer) == first && num_bytes_taken(segment) <= 2 * MIB);
    sc_buffer_release(buffer);
    sc_buffer *larger = filled(pool, 2 * MIB, 3);
    CHECK(offset_of(segment, larger) != first && num_bytes_taken(segment) < 3 * MIB + MIB / 4);
    buffer = filled(pool, MIB, 4);
    CHECK(offset_of(segment, buffer) == first && byte_at(segment->descriptor, first) == 4);
    sc_buffer_release(buffer);
    sc_buffer_release(larger);
    sc_pool_close(pool);
}

/* Whether a huge page can be had where one small page is written. */
static bool has_huge_pages(void) {
    int descriptor = memfd_create("test", MFD_CLOEXEC);
    CHECK(descriptor >= 0 && ftruncate(descriptor, 4 * (off_t)MIB) == 0);
    char *place = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    CHECK(place != MAP_FAILED);
    char *bytes = mmap(place + -(uintptr_t)place % (2 * MIB), 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       descriptor, 0);
    *bytes = 1;
    bool is_huge = madvise(bytes, 2 * MIB, 25) == 0; /* MADV_COLLAPSE */
    munmap(place, 4 * MIB);
    close(descriptor);
    return is_huge;
}

static void a_segment_has_huge_pages_where_the_system_has_some_and_none_before_it_holds_a_message(void) {
    bool is_huge = false;
    /* The system may have none for a moment. */
    for (int i = 0; i < 5 && !is_huge; ++i) {
        sc_pool *pool = sc_pool_new();
        const sc_segment *segment = shared(pool, 16 * MIB);
        CHECK(num_bytes_taken(segment) < MIB);
        sc_buffer *buffer = filled(pool, 65536, 7);
        is_huge = num_bytes_taken(segment) == 2 * MIB;
        sc_buffer_release(buffer);
        sc_pool_close(pool);
    }
    CHECK(is_huge || !has_huge_pages());
}

static void what_a_segment_holds_stays_when_the_pool_leaves_it(void) {
    sc_pool *pool = sc_pool_new();
    const sc_segment *segment = shared(pool, 16 * MIB);
    int reader = dup(segment->descriptor);
    sc_buffer *used = filled(pool, MIB, 1), *free_one = filled(pool, MIB, 2);
    off_t offset = offset_of(segment, used), offset_of_free = offset_of(segment, free_one);
    char token[SC_NAME_BYTES];
    memcpy(token, segment->token, sizeof token);
    sc_buffer_release(free_one);
    sc_pool_unshare(pool);
    CHECK(used->bytes[0] == 1);
    const sc_segment *next = shared(pool, 16 * MIB);
    CHECK(strcmp(next->token, token) != 0);
    sc_buffer_release(used);
    used = filled(pool, MIB, 3);
    free_one = filled(pool, MIB, 4);
    CHECK(used->segment == next && free_one->segment == next);
    CHECK(byte_at(reader, offset + MIB / 2) == 1 && byte_at(reader, offset_of_free + MIB / 2) == 2);
    close(reader);
    sc_buffer_release(used);
    sc_buffer_release(free_one);
    sc_pool_close(pool);
}

/* In a child. */
static bool can_share_with_a_limit(int resource, rlim_t most) {
    const struct rlimit limit = {most, most};
    int status;
    pid_t child = fork();
    if (child == 0) {
        sc_pool *pool = sc_pool_new();
        CHECK(setrlimit(resource, &limit) == 0);
        _exit(sc_pool_share(pool, 16 * MIB) != NULL);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status) == 1;
}

static void with_a_limit_that_it_could_exceed_there_is_no_segment_and_no_signal(void) {
    CHECK(can_share_with_a_limit(RLIMIT_FSIZE, 16 * MIB) && !can_share_with_a_limit(RLIMIT_FSIZE, 16 * MIB - 1));
    CHECK(!can_share_with_a_limit(RLIMIT_AS, (rlim_t)1 << 46) && !can_share_with_a_limit(RLIMIT_NOFILE, 0));
}

int main(void) {
    what_lies_in_a_segment_can_be_read_through_its_descriptor();
    a_segment_begins_with_its_token();
    small_buffers_lie_in_no_segment_and_neither_do_those_it_has_no_room_for();
    without_a_segment_buffers_are_as_ever();
    a_segment_has_huge_pages_where_the_system_has_some_and_none_before_it_holds_a_message();
    the_memory_of_a_segment_is_used_again_and_given_back_for_another_size();
    what_a_segment_holds_stays_when_the_pool_leaves_it();
    with_a_limit_that_it_could_exceed_there_is_no_segment_and_no_signal();
    return 0;
}

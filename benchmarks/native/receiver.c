/* A server that agrees to everything, for the benchmarks of the C client: it reads, counts and acknowledges at once.
 *
 *     receiver ADDRESS WELCOME OPENED STEP_BYTES
 *
 * WELCOME and OPENED are files with its answers to Hello and Open. Each line of its input is a number; it writes a line as
 * soon as so many steps have come in all. A message that is none of ours is a step. It leaves at the end of its input.
 * Steps of STEP_BYTES that lie in the client's memory are read from there, as a server of the same node does.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "wire.h"

enum { MESSAGES_PER_ACK = 32, ACK_BYTES = 25, MAX_ANSWER_BYTES = 4096, MAX_PEER_BYTES = 256, IN_SEGMENT = 8 };

typedef struct {
    unsigned char bytes[MAX_ANSWER_BYTES];
    size_t num;
} answer;

typedef struct {
    void *router;
    answer welcome, opened;
    unsigned char peer[MAX_PEER_BYTES];
    size_t peer_bytes;
    uint64_t num_steps, mark;
    bool owes_ack, has_ended;
    int segment; /* the client's memory, or -1 */
    size_t step_bytes;
    unsigned char *steps;
    uint64_t num_in_segment; /* of the message that is being read */
} receiver;

static answer read_answer(const char *path) {
    answer it = {.num = 0};
    FILE *file = fopen(path, "rb");
    if (file != NULL) {
        it.num = fread(it.bytes, 1, sizeof it.bytes, file);
        fclose(file);
    }
    if (it.num == 0) {
        fprintf(stderr, "receiver: cannot read %s\n", path);
        exit(1);
    }
    return it;
}

/* The machine is little-endian, as the protocol is. */
static uint64_t number(const unsigned char *bytes, size_t num) {
    uint64_t value = 0;
    memcpy(&value, bytes, num);
    return value;
}

static void say(const receiver *it, const void *bytes, size_t num) {
    zmq_send(it->router, it->peer, it->peer_bytes, ZMQ_SNDMORE);
    zmq_send(it->router, bytes, num, 0);
}

static void acknowledge(receiver *it) {
    unsigned char ack[ACK_BYTES] = {'S', 'T', 'R', 'M', SC_PROTOCOL_VERSION, 0, SC_ACK_KIND, 0};
    memcpy(ack + 8, &it->mark, sizeof it->mark);
    ack[24] = it->has_ended;
    say(it, ack, sizeof ack);
    it->owes_ack = false;
}

/* Whether a control message, which is JSON, is of this kind, given in quotes. */
static bool is_control(const unsigned char *frame, size_t num, const char *kind) {
    return num > 0 && frame[0] == '{' && memmem(frame, num, kind, strlen(kind)) != NULL;
}

/* The memory that an Open offers, as far as it does. */
static void open_segment(receiver *it, const unsigned char *open_message, size_t num) {
    static const char pid[] = "\"pid\":", descriptor[] = "\"descriptor\":";
    const char *process = memmem(open_message, num, pid, strlen(pid));
    const char *file = memmem(open_message, num, descriptor, strlen(descriptor));
    char path[64];
    if (it->segment >= 0)
        close(it->segment);
    it->segment = -1;
    if (process == NULL || file == NULL)
        return;
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", strtol(process + strlen(pid), NULL, 10),
             strtol(file + strlen(descriptor), NULL, 10));
    it->segment = open(path, O_RDONLY | O_CLOEXEC);
}

static void read_segment(receiver *it, const unsigned char *place) {
    const size_t num = it->num_in_segment * it->step_bytes;
    unsigned char *steps = realloc(it->steps, num);
    if (steps == NULL || pread(it->segment, steps, num, (off_t)number(place, 8)) != (ssize_t)num) {
        fprintf(stderr, "receiver: cannot read the client's memory\n");
        exit(1);
    }
    it->steps = steps;
}

static void take_header(receiver *it, const unsigned char *header, size_t num) {
    if (num == SC_DATA_BYTES && memcmp(header, "STRM", 4) == 0 && number(header + 6, 2) == SC_DATA_KIND) {
        it->mark = number(header + 24, 8) + 1;
        it->num_steps += number(header + 56, 4);
        it->num_in_segment = header[62] & IN_SEGMENT ? number(header + 56, 4) : 0;
        it->owes_ack = true;
    } else if (is_control(header, num, "\"Hello\"")) {
        say(it, it->welcome.bytes, it->welcome.num);
    } else if (is_control(header, num, "\"Open\"")) {
        it->mark = 0;
        it->has_ended = false;
        open_segment(it, header, num);
        say(it, it->opened.bytes, it->opened.num);
    } else if (is_control(header, num, "\"End\"") || is_control(header, num, "\"Ping\"")) {
        it->has_ended |= is_control(header, num, "\"End\"");
        it->owes_ack = true;
    } else {
        it->num_steps += 1;
    }
}

/* Read one message, if there is one. */
static bool take(receiver *it) {
    const int num = zmq_recv(it->router, it->peer, sizeof it->peer, ZMQ_DONTWAIT);
    if (num < 0)
        return false;
    it->peer_bytes = (size_t)num;
    zmq_msg_t frame;
    bool is_header = true, has_more = true;
    it->num_in_segment = 0;
    while (has_more) {
        zmq_msg_init(&frame);
        zmq_msg_recv(&frame, it->router, 0);
        if (is_header)
            take_header(it, zmq_msg_data(&frame), zmq_msg_size(&frame));
        else if (it->num_in_segment > 0)
            read_segment(it, zmq_msg_data(&frame));
        is_header = false;
        has_more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
    return true;
}

/* Read what has come, and acknowledge it. */
static void take_all(receiver *it) {
    for (int count = 0; count < MESSAGES_PER_ACK && take(it); ++count)
        ;
    if (it->owes_ack)
        acknowledge(it);
}

static void run(receiver *it) {
    char line[64];
    uint64_t awaited = 0;
    bool is_awaited = false;
    zmq_pollitem_t items[] = {{it->router, 0, ZMQ_POLLIN, 0}, {NULL, 0, ZMQ_POLLIN, 0}};
    while (zmq_poll(items, 2, -1) >= 0) {
        if (items[0].revents)
            take_all(it);
        if (items[1].revents) {
            if (fgets(line, sizeof line, stdin) == NULL)
                return;
            awaited = strtoull(line, NULL, 10);
            is_awaited = true;
        }
        if (is_awaited && it->num_steps >= awaited) {
            puts("there");
            fflush(stdout);
            is_awaited = false;
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: receiver ADDRESS WELCOME OPENED STEP_BYTES\n");
        return 2;
    }
    void *context = zmq_ctx_new();
    receiver it = {.router = zmq_socket(context, ZMQ_ROUTER),
                   .welcome = read_answer(argv[2]),
                   .opened = read_answer(argv[3]),
                   .segment = -1,
                   .step_bytes = strtoul(argv[4], NULL, 10)};
    const int no_limit = 0, no_linger = 0;
    zmq_setsockopt(it.router, ZMQ_RCVHWM, &no_limit, sizeof no_limit);
    zmq_setsockopt(it.router, ZMQ_LINGER, &no_linger, sizeof no_linger);
    if (zmq_bind(it.router, argv[1]) != 0) {
        fprintf(stderr, "receiver: cannot bind %s: %s\n", argv[1], zmq_strerror(zmq_errno()));
        return 1;
    }
    run(&it);
    free(it.steps);
    zmq_close(it.router);
    zmq_ctx_term(context);
    return 0;
}

/* Sends samples of float32. Each line of its input says how many; it answers with the CPU seconds of its own thread.
 *
 *     sender client SAMPLE_BYTES          through the client, to the study that STREAM_CONNECTION names
 *     sender bare SAMPLE_BYTES ADDRESS    a memory copy, and a header of the same size as ours and the copy to ZeroMQ
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stream_client.h>
#include <time.h>
#include <zmq.h>

enum { HEADER_BYTES = 68 };

typedef struct {
    size_t sample_bytes;
    float *sample;
    stream_simulation *simulation;
    int64_t time_step;
    void *dealer;
    float *copy;
} sender;

static void leave(const char *problem) {
    fprintf(stderr, "sender: %s\n", problem);
    exit(1);
}

static void send_as_client(sender *it) {
    if (stream_put(it->simulation, "field", it->sample) != STREAM_OK ||
        stream_send(it->simulation, it->time_step++) != STREAM_OK)
        leave(stream_error(it->simulation));
}

static void send_bare(sender *it) {
    static const char header[HEADER_BYTES];
    memcpy(it->copy, it->sample, it->sample_bytes);
    if (zmq_send(it->dealer, header, sizeof header, ZMQ_SNDMORE) < 0 ||
        zmq_send(it->dealer, it->copy, it->sample_bytes, 0) < 0)
        leave(zmq_strerror(zmq_errno()));
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run(sender *it, void (*send)(sender *)) {
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const double before_s = cpu_s();
        for (long left = atol(line); left > 0; --left)
            send(it);
        printf("%.9f\n", cpu_s() - before_s);
        fflush(stdout);
    }
}

static void connect_client(sender *it) {
    const int64_t shape[1] = {(int64_t)(it->sample_bytes / sizeof(float))};
    if (stream_connect(&it->simulation, 0, 1) != STREAM_OK)
        leave(stream_error(NULL));
    if (stream_declare_field(it->simulation, "field", STREAM_FLOAT32, 1, shape, NULL, NULL) != STREAM_OK)
        leave(stream_error(it->simulation));
}

static void connect_bare(sender *it, const char *address) {
    const int no_limit = 0;
    it->dealer = zmq_socket(zmq_ctx_new(), ZMQ_DEALER);
    zmq_setsockopt(it->dealer, ZMQ_SNDHWM, &no_limit, sizeof no_limit);
    if (zmq_connect(it->dealer, address) != 0)
        leave(zmq_strerror(zmq_errno()));
}

int main(int argc, char **argv) {
    if (argc < 3)
        leave("say client or bare, and the bytes of a sample");
    sender it = {.sample_bytes = strtoul(argv[2], NULL, 10)};
    it.sample = malloc(it.sample_bytes);
    it.copy = malloc(it.sample_bytes);
    if (it.sample == NULL || it.copy == NULL)
        leave("no memory");
    for (size_t k = 0; k < it.sample_bytes / sizeof(float); ++k)
        it.sample[k] = 1;
    if (strcmp(argv[1], "client") == 0) {
        connect_client(&it);
        run(&it, send_as_client);
    } else if (argc == 4) {
        connect_bare(&it, argv[3]);
        run(&it, send_bare);
    } else {
        leave("say where bare messages are to go");
    }
    return 0;
}

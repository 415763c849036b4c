/* Messages as bytes and back: protocol version 4, as in docs/reference/protocol.md. No sockets, no clock. */
#ifndef SC_WIRE_H
#define SC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "segment.h"

#define SC_PROTOCOL_VERSION 4
#define SC_MAX_TEXT_BYTES 65535
#define SC_MAX_PART_BYTES (4 * 1024 * 1024)
#define SC_MAX_FIELDS 64
#define SC_MAX_UNKNOWN_STEPS 1000000
#define SC_ATTACHING UINT32_MAX
#define SC_ALL_FIELDS 0xffff
#define SC_DATA_BYTES 68
#define SC_PLACE_BYTES 8

/* Of the packed messages; all others are JSON. */
enum { SC_DATA_KIND = 1, SC_ACK_KIND = 2 };

/* The messages of a server. */
enum { SC_WELCOME = 1, SC_OPENED, SC_ACK, SC_INVALIDATED, SC_STOPPED, SC_REFUSAL };
enum { SC_BY_STEPS = 0, SC_BY_SIMULATIONS = 1 };
enum { SC_AWAY_WAIT = 0, SC_AWAY_CONTINUE = 1, SC_AWAY_STOP = 2 };
enum { SC_STALE_INCARNATION = 6, SC_NOT_OPEN = 11, SC_BUSY = 12, SC_NO_SIMULATION_LEFT = 13 };

typedef struct {
    int num;
    char **names;
    double *values;
} sc_parameters;

typedef struct {
    char *name;
    int ndim;
    int64_t shape[STREAM_MAX_DIMENSIONS];
    stream_dtype dtype; /* 0: kept as sent */
    bool optional;
    bool is_static; /* sent once per simulation */
    bool ragged; /* the first extent differs, by step or by simulation; `shape` has the largest */
} sc_field;

/* The part of one field that this client rank sends: of a `ragged` one all of it, and `count` is the largest; of one
 * that is sent once the rows that it has, and `ragged` is false. `field` belongs to the field table. */
typedef struct {
    const char *field;
    stream_dtype dtype;
    int ndim;
    int64_t shape[STREAM_MAX_DIMENSIONS];
    int64_t offset[STREAM_MAX_DIMENSIONS];
    int64_t count[STREAM_MAX_DIMENSIONS];
    bool ragged;
} sc_block;

typedef struct {
    int num;
    char **addresses;
} sc_addresses;

typedef struct {
    char *study;
    int64_t simulation;
    uint32_t attempt;
    uint32_t incarnation;
    int num_server_ranks;
    sc_addresses *endpoints;
    sc_parameters parameters;
    int64_t num_steps; /* -1: not known ahead */
    int64_t first;
    int64_t every;
    int num_fields;
    sc_field *fields;
    int routing;
    int64_t window_bytes;
    int if_server_away;
    double wait_s;
} sc_welcome;

typedef struct {
    uint32_t incarnation;
    uint32_t credit;
    uint8_t *known;
    size_t num_known_bytes;
    bool has_segment; /* it reads from the segment that it was offered */
} sc_opened;

typedef struct {
    int64_t received;
    int64_t durable;
    bool ended;
    bool stop;
} sc_ack;

typedef struct {
    int reason;
    char *text;
    int64_t sequence; /* -1: it concerns no Data */
} sc_refusal;

/* A message of the server. `kind` says which of the others is there; it owns what it points to. */
typedef struct {
    int kind;
    union {
        sc_welcome welcome;
        sc_opened opened;
        sc_ack ack;
        int64_t invalidated;
        char *stop_text;
        sc_refusal refusal;
    };
} sc_reply;

/* Total: any bytes give a reply, or STREAM_ERROR_REFUSED with what is wrong with them, in time and memory linear in
 * their number. Messages that only clients send are errors. On an error there is nothing to free. */
int sc_decode_reply(const void *bytes, size_t num_bytes, sc_reply *reply, sc_error *error);
void sc_reply_free(sc_reply *reply);
void sc_welcome_free(sc_welcome *welcome);
void sc_parameters_free(sc_parameters *parameters);
void sc_addresses_free(sc_addresses *addresses);

/* A message to the server. `bytes` is NULL after a lack of memory. Free with sc_message_free. */
typedef struct {
    uint8_t *bytes;
    size_t num_bytes;
} sc_message;

typedef struct {
    const char *study;
    int64_t simulation; /* -1: the server chooses */
    uint32_t attempt;
    uint32_t rank;
    uint32_t num_ranks;
    const sc_parameters *parameters; /* NULL: none */
} sc_hello;

/* Whether these can be sent: at most 65535 finite values, under different names. Else STREAM_ERROR_ARGUMENT. */
int sc_check_parameters(const sc_parameters *parameters, sc_error *error);

sc_message sc_encode_hello(const sc_hello *hello);
/* The blocks of each step, those that are sent once, and the segment that is offered, or NULL. */
sc_message sc_encode_open(const sc_welcome *welcome, uint32_t rank, uint32_t num_ranks, const sc_block *blocks,
                          int num_blocks, const sc_block *static_blocks, int num_static_blocks,
                          const sc_segment *segment);
sc_message sc_encode_end(const sc_welcome *welcome, uint32_t incarnation, int64_t share, int64_t total);
sc_message sc_encode_ping(void);
sc_message sc_encode_invalidate(const sc_welcome *welcome, const char *reason);
void sc_message_free(sc_message *message);

typedef struct {
    int64_t simulation;
    uint32_t attempt;
    uint32_t incarnation;
    int64_t sequence;
    int64_t index;
    uint64_t present;
    int64_t offset;
    uint32_t num_steps;
    int field; /* SC_ALL_FIELDS, or the block that this is a part of */
    bool last;
    bool is_static; /* `field` is one of the static blocks */
    bool in_segment; /* the payload is where in the segment it lies */
    bool has_checksum;
    uint32_t checksum;
} sc_data;

void sc_encode_data(const sc_data *data, uint8_t header[SC_DATA_BYTES]);
/* The payload of what lies in the segment, from byte `offset` on. */
void sc_encode_place(uint64_t offset, uint8_t payload[SC_PLACE_BYTES]);

/* CRC-32 as in zlib: of "123456789" it is cbf43926. Begin with 0, and pass the last result on for more bytes. */
uint32_t sc_crc32(uint32_t crc, const void *bytes, size_t num_bytes);

/* Bytes of one step's block, of a ragged one at most. */
size_t sc_block_bytes(const sc_block *block);

#endif

/* Stream Server's client for C: sends the time steps of a simulation to the study that trains on them.
 *
 *     stream_simulation *simulation;
 *     stream_connect(&simulation, rank, num_ranks);
 *     stream_declare_field(simulation, "temperature", STREAM_FLOAT64, 2, shape, offset, count);
 *     for (int64_t step = 0; step < num_steps; ++step) {
 *         ...
 *         stream_put(simulation, "temperature", u);
 *         stream_send(simulation, step);
 *     }
 *     stream_finish(&simulation);
 *
 * Every function that returns int gives STREAM_OK, STREAM_STOP or a negative STREAM_ERROR_...; none ends the process or
 * installs a signal handler. After a failure of the connection all further calls give the same error.
 * With STREAM_CONNECTION=none in the environment every call succeeds and does nothing: the same program runs alone. Its
 * parameters are those that it gives itself, or else those of the JSON object in STREAM_PARAMETERS.
 *
 * Threads: a stream_simulation belongs to one thread at a time, and one that two are found to use at once fails with
 * STREAM_ERROR_ARGUMENT; different ones may be used by different threads at once. The library starts only ZeroMQ's own
 * threads. A simulation belongs to the process that connected it: a child after fork() can only leave it, by
 * stream_abandon.
 *
 * Arrays are in C order: the last dimension is contiguous. Sizes and offsets count elements, offsets from 0.
 */
#ifndef STREAM_CLIENT_H
#define STREAM_CLIENT_H

#include <stdint.h>

#if defined(STREAM_CLIENT_STATIC)
#define STREAM_API
#else
#define STREAM_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define STREAM_CLIENT_VERSION "0.1.0"
#define STREAM_MAX_DIMENSIONS 8

enum {
    STREAM_OK = 0,
    STREAM_STOP = 1,                   /* the study has ended and wants nothing more, or no simulation is left */
    STREAM_ERROR_ARGUMENT = -1,        /* a mistake in this call; the next call may be right */
    STREAM_ERROR_CONNECTION_FILE = -2, /* STREAM_CONNECTION is not set, or names no connection file */
    STREAM_ERROR_REFUSED = -3,         /* the server refused this simulation, or what it sent */
    STREAM_ERROR_STEPS_LOST = -4,      /* the study went back to a checkpoint and misses steps that are kept no more */
    STREAM_ERROR_UNREACHABLE = -5,     /* the server stayed away for longer than the study lets a simulation wait */
    STREAM_ERROR_MEMORY = -6,          /* no memory */
    STREAM_ERROR_SYSTEM = -7           /* ZeroMQ or the operating system failed; mind `ulimit -n` */
};

/* The type of an array's elements. STREAM_AS_PUT leaves it to the first stream_put_array. */
typedef enum {
    STREAM_AS_PUT = 0,
    STREAM_BOOL = 1, /* one byte */
    STREAM_INT8 = 2,
    STREAM_INT16 = 3,
    STREAM_INT32 = 4,
    STREAM_INT64 = 5,
    STREAM_UINT8 = 6,
    STREAM_UINT16 = 7,
    STREAM_UINT32 = 8,
    STREAM_UINT64 = 9,
    STREAM_FLOAT16 = 10,
    STREAM_FLOAT32 = 11,
    STREAM_FLOAT64 = 12,
    STREAM_COMPLEX64 = 13,
    STREAM_COMPLEX128 = 14
} stream_dtype;

typedef struct stream_simulation stream_simulation;

/* What stream_connect takes from the environment; begin with STREAM_OPTIONS_DEFAULT. */
typedef struct {
    const char *connection;              /* path of the connection file, or "none"; NULL: STREAM_CONNECTION names it */
    int64_t simulation_id;               /* which one this is, when it attaches by itself; -1: the server chooses */
    int num_parameters;                  /* what is simulated, when it attaches by itself; 0: what the server says */
    const char *const *parameter_names;
    const double *parameter_values;
    double timeout_s;                    /* how long the server may say nothing while it is waited for; time in which
                                            this process is stopped, or a launcher is about to start the next server,
                                            does not count */
} stream_options;

#define STREAM_OPTIONS_DEFAULT {0, -1, 0, 0, 0, 60.0}

/* Take part in a study as rank `rank` of the `num_ranks` of one simulation. Each rank does so for itself.
 *
 * STREAM_STOP: the study has ended already; the simulation is there, and every further call gives STREAM_STOP.
 * After an error *simulation is NULL, and stream_error(NULL) tells what happened. */
STREAM_API int stream_connect(stream_simulation **simulation, int rank, int num_ranks);
STREAM_API int stream_connect_with(stream_simulation **simulation, int rank, int num_ranks,
                                   const stream_options *options);

/* The study's numbers of this simulation and of its attempt, from 0. A new server may give another attempt to a
 * simulation that attached by itself. */
STREAM_API int64_t stream_id(const stream_simulation *simulation);
STREAM_API int64_t stream_attempt(const stream_simulation *simulation);

/* One parameter of this simulation. *value stays as it is if the program runs alone, or if the study has no such
 * parameter, which is written to stderr, too. */
STREAM_API int stream_parameter(stream_simulation *simulation, const char *name, double *value);

/* The labels of the study's time steps: first, first + every, ... `num` of them, -1 if that is not known ahead. */
STREAM_API int stream_time_steps(stream_simulation *simulation, int64_t *num, int64_t *first, int64_t *every);

/* The study's fields, as in study.json. stream_field_shape gives the number of dimensions, or an error;
 * stream_field_name gives NULL beyond the last. A program that runs alone sees none. */
STREAM_API int stream_num_fields(const stream_simulation *simulation);
STREAM_API const char *stream_field_name(const stream_simulation *simulation, int i);
STREAM_API int stream_field_shape(stream_simulation *simulation, const char *name,
                                  int64_t shape[STREAM_MAX_DIMENSIONS]);

/* Say, before the first stream_send, which block of a field this rank sends: its global shape, and where the block
 * begins and how large it is.
 *
 * Without `offset` (NULL) the ranks cut the first dimension as evenly as it goes, in rank order; if the block is the
 * whole field, it begins at 0. Without `count` (NULL) it is that even share, or what stream_put_array says. A count
 * with a 0 in it: this rank has no part of the field. */
STREAM_API int stream_declare_field(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                                    const int64_t shape[], const int64_t offset[], const int64_t count[]);

/* Copy this rank's block of a declared field into the next time step.
 *
 * A field that study.json sends once per simulation ("per": "simulation": a mesh, a coefficient) is put once, before the
 * first stream_send, by this function or one of the next two; it goes with all time steps. */
STREAM_API int stream_put(stream_simulation *simulation, const char *name, const void *data);

/* The same for a block inside a larger array, for instance without ghost layers: `data` is its first element,
 * strides[d] how many elements further the next one in dimension d lies. */
STREAM_API int stream_put_strided(stream_simulation *simulation, const char *name, const void *data,
                                  const int64_t strides[]);

/* The same with the block's type and size, which need not be declared then; strides NULL: contiguous. For fields whose
 * first extent differs from step to step or from simulation to simulation ({"max": n} in study.json), and for wrappers
 * in languages whose arrays know their shape. */
STREAM_API int stream_put_array(stream_simulation *simulation, const char *name, stream_dtype dtype, int ndim,
                                const int64_t count[], const int64_t strides[], const void *data);

/* Send what was put as one sample. Blocks while the server has no room for more. After an error nothing is put any
 * more. Small steps share a message, and the last ones may wait for the next call.
 *
 * STREAM_STOP: the study has ended, or this simulation was stopped early, and nothing more of it is wanted. Parallel codes learn this at
 * different steps on different ranks, and must agree before they leave their loop. */
STREAM_API int stream_send(stream_simulation *simulation, int64_t time_step);

/* Finish this simulation and become the next one, for a worker that stays: one that the study has meant for this process
 * (simulation.per_worker), or, for one that attached, any. STREAM_STOP: none is left.
 * STREAM_ERROR_ARGUMENT: as for stream_finish; it stays the same simulation. */
STREAM_API int stream_next(stream_simulation *simulation);

/* Withdraw what was sent, because the run is not worth learning from; it is not tried again. To be called before the last
 * time step is sent. STREAM_ERROR_REFUSED: all time steps have arrived, so that the simulation is finished already. */
STREAM_API int stream_invalidate(stream_simulation *simulation, const char *reason);

/* Wait until all that was sent has arrived, and leave. *simulation is NULL afterwards, whatever is returned, so a
 * message is in stream_error(NULL), and on stderr. STREAM_STOP: the study had ended, or the simulation was stopped early.
 *
 * STREAM_ERROR_ARGUMENT: each stream_send was a mistake, so that nothing was sent; the simulation is abandoned, and the
 * message is that of the first mistake. A simulation that ran on without its server (client.if_server_away is "continue")
 * leaves with STREAM_OK and a word on stderr: a new attempt will produce what is missing. */
STREAM_API int stream_finish(stream_simulation **simulation);

/* Leave without finishing, as after an error of the solver: the study starts a new attempt, unless all its time steps
 * arrive. */
STREAM_API int stream_abandon(stream_simulation **simulation);

/* Why the study has ended or the simulation was stopped, as far as the server told, or "". */
STREAM_API const char *stream_stop_reason(const stream_simulation *simulation);

/* What was wrong at the last error, or "". NULL: at the last stream_connect, stream_finish or stream_abandon of this
 * thread, or in a call without a simulation. Valid until the next call. */
STREAM_API const char *stream_error(const stream_simulation *simulation);

/* The version of the library. */
STREAM_API const char *stream_version(void);

#ifdef __cplusplus
}
#endif

#endif

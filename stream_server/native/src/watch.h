/* The connection file as it is now: a server that was started again is elsewhere, and its file says where. */
#ifndef SC_WATCH_H
#define SC_WATCH_H

#include "connection_file.h"

/* Looks at the connection file from time to time. `file` is the newest that it saw. It `ignores_touches` where the study
 * does not want the client to wait. */
typedef struct {
    sc_connection_file file;
    char *path; /* absolute: the solver may change its folder */
    double next_look;
    bool has_read;
    bool is_touched;
    bool ignores_touches;
    uint64_t read_state[4];
} sc_watch;

/* Read the file at `path`, and watch it from now on. On an error there is nothing to close. */
int sc_watch_open(sc_watch *watch, const char *path, sc_error *error);
void sc_watch_close(sc_watch *watch);

/* Whether the file is of a later incarnation. It is looked at twice a second at most, unless it has to be now. */
bool sc_watch_is_newer_than(sc_watch *watch, uint32_t incarnation, bool look_now);

/* Whether the launcher has touched the file since the last call: the next server will come. */
bool sc_watch_was_touched(sc_watch *watch);

/* How long until the file is to be looked at again. */
double sc_watch_slice_s(const sc_watch *watch);

#endif

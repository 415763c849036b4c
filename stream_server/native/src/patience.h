/* How long a client waits: as long as the server says something now and then. */
#ifndef SC_PATIENCE_H
#define SC_PATIENCE_H

#include <stdbool.h>

/* Seconds of a clock that never goes back. */
double sc_now(void);

/* The server's silence during one wait, and when the question is to be asked again. */
typedef struct {
    double timeout_s;
    double repeat_s;
    double began;
    double heard;
    double asked;
    double listened;
    double refused; /* since when, or -1 */
} sc_patience;

/* The silence may have lasted for silent_s before. */
sc_patience sc_patience_begin(double timeout_s, double repeat_s, double silent_s);

/* How long the silence had lasted at the end of the last turn. */
double sc_patience_silent_s(const sc_patience *patience);

/* The silence has lasted timeout_s at the end of the last turn. */
bool sc_patience_is_over(const sc_patience *patience);

/* Whether the wait has lasted so long. */
bool sc_patience_has_lasted(const sc_patience *patience, double most_s);

/* How long to wait before looking again whether it is over or the question may be repeated. */
double sc_patience_slice_s(const sc_patience *patience);

/* A turn of listening is over, for which most_s were meant. The rest of a much longer one, in which this process was
 * stopped, is not the server's silence. */
void sc_patience_listened(sc_patience *patience, double most_s);

/* The server has just refused the key; whether it has done so for a while. */
bool sc_patience_refused(sc_patience *patience);

/* The server said something. */
void sc_patience_heard(sc_patience *patience);

/* Whether it is time to ask again; if so, the next time is repeat_s later. */
bool sc_patience_may_repeat(sc_patience *patience);

#endif

/* How long a client waits: as long as the server says something now and then. */
#ifndef SC_SILENCE_TIMER_H
#define SC_SILENCE_TIMER_H

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
} sc_silence_timer;

/* The silence may have lasted for silent_s before. */
sc_silence_timer sc_silence_timer_begin(double timeout_s, double repeat_s, double silent_s);

/* How long the silence had lasted at the end of the last turn. */
double sc_silence_timer_silent_s(const sc_silence_timer *silence);

/* The silence has lasted timeout_s at the end of the last turn. */
bool sc_silence_timer_is_over(const sc_silence_timer *silence);

/* Whether the wait has lasted so long. */
bool sc_silence_timer_has_lasted(const sc_silence_timer *silence, double most_s);

/* How long to wait before looking again whether it is over or the question may be repeated. */
double sc_silence_timer_slice_s(const sc_silence_timer *silence);

/* A turn of listening is over, for which most_s were meant. The rest of a much longer one, in which this process was
 * stopped, is not the server's silence. */
void sc_silence_timer_listened(sc_silence_timer *silence, double most_s);

/* The server has just refused the key; whether it has done so for a while. */
bool sc_silence_timer_refused(sc_silence_timer *silence);

/* The server said something. */
void sc_silence_timer_heard(sc_silence_timer *silence);

/* Whether it is time to ask again; if so, the next time is repeat_s later. */
bool sc_silence_timer_may_repeat(sc_silence_timer *silence);

#endif

/* How a conversation goes on with a server that was started again. */
#ifndef SC_RENEWAL_H
#define SC_RENEWAL_H

#include "conversation.h"

/* Leave the server, if there is one, with all that it may not have. */
int sc_renewal_set_aside(sc_conversation *conversation, sc_error *error);

/* Have a session with the newest server; what it does not know of what was sent before is unsent then. */
int sc_renewal_session(sc_conversation *conversation, sc_error *error);

/* Send what no connection has, each step once there is room, for which it waits for most_s or what it may; *is_done says
 * whether none had to wait for that long. */
int sc_renewal_send_unsent(sc_conversation *conversation, double most_s, bool *is_done, sc_error *error);

#endif

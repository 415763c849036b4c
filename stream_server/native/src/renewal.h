/* How a conversation goes on with a server that was started again. */
#ifndef SC_RENEWAL_H
#define SC_RENEWAL_H

#include "conversation.h"

/* Leave the server, if there is one, with all that it may not have. */
int sc_renewal_set_aside(sc_conversation *conversation, sc_error *error);

/* Have a session with the newest server, which gets all that was sent to older ones. */
int sc_renewal_session(sc_conversation *conversation, sc_error *error);

#endif

/* Which of a server's addresses means something on this node. */
#ifndef SC_ADDRESS_H
#define SC_ADDRESS_H

#include "wire.h"

/* The first address that can be used, or NULL: ipc only on the server's own node, where its file is.
 *
 * A server that is gone has no file any more. Its address is as good as any that does not answer. */
const char *sc_usable_address(const sc_addresses *addresses, bool is_same_node);

/* Whether this is the node called `host`. */
bool sc_is_this_node(const char *host);

/* This node's name. */
void sc_node_name(char name[256]);

/* The addresses as one text, with `between` them, cut where it does not fit. */
void sc_join_addresses(char *text, size_t num_bytes, const sc_addresses *addresses, const char *between);

#endif

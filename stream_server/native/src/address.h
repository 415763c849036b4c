/* Which of a server's addresses means something on this node.
 *
 * Why: docs/decisions/0074-who-is-the-server.md */
#ifndef SC_ADDRESS_H
#define SC_ADDRESS_H

#include <sys/stat.h>

#include "wire.h"

/* Whether a file belongs to this user, or to root, who could change all of ours anyway. */
bool sc_is_ours(const struct stat *status);

/* Open a file to read it, whatever somebody has put in its place: a pipe would be waited for, a device may never end.
 * -1: it cannot be opened, or is no ordinary file; errno tells. */
int sc_open_ordinary(const char *path);

/* The folder of an ipc address, opened: it belongs to this user (or root), is closed to all others, and is no link.
 * -1: it is none of that, or not there. */
int sc_open_folder(const char *address);

/* A way to an ipc address that leads through an open folder, as text that the caller frees; NULL without memory.
 *
 * ZeroMQ connects again by itself. Should the folder be removed, as by a cleaner of /tmp, and somebody else make one of
 * its name, this still leads to the one that was opened, or to nothing. A `folder` of -1 leads nowhere. */
char *sc_way(const char *address, int folder);

/* The first address that can be used, or NULL: ipc only on the server's own node, where its socket is in a folder of
 * ours.
 *
 * A server that is gone has no socket any more. Its address is as good as any that does not answer. */
const char *sc_usable_address(const sc_addresses *addresses, bool is_same_node);

/* Whether a tcp address leads nowhere over IPv4: this node has none, or no address of that kind for the host. */
bool sc_needs_ipv6(const char *address);

/* Whether this is the node called `host`. */
bool sc_is_this_node(const char *host);

/* This node's name. */
void sc_node_name(char name[256]);

#define SC_UNREACHED_BYTES 512
/* A sentence for who hears nothing over TCP, with a space before it. */
void sc_unreached(char text[SC_UNREACHED_BYTES]);

/* The addresses as one text, with `between` them, cut where it does not fit. */
void sc_join_addresses(char *text, size_t num_bytes, const sc_addresses *addresses, const char *between);

#endif

/* CRC-32 as in zlib: of "123456789" it is cbf43926. Begin with 0, and pass the last result on for more bytes. */
#ifndef SC_CRC32_H
#define SC_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t sc_crc32(uint32_t crc, const void *bytes, size_t num_bytes);

#endif

#include "wire.h"

/* Slicing by 8: table k holds the remainders of a byte that k bytes follow. The remainder of a byte is the sum of those
 * of its bits, so 64 numbers (the powers of x modulo the polynomial edb88320) make all tables. */
#define SUM(i, a, b, c, d, e, f, g, h) \
    ((((i) & 128) ? a : 0u) ^ (((i) & 64) ? b : 0u) ^ (((i) & 32) ? c : 0u) ^ (((i) & 16) ? d : 0u) ^ \
     (((i) & 8) ? e : 0u) ^ (((i) & 4) ? f : 0u) ^ (((i) & 2) ? g : 0u) ^ (((i) & 1) ? h : 0u))
#define FOUR(i, ...) \
    SUM(i, __VA_ARGS__), SUM((i) + 1, __VA_ARGS__), SUM((i) + 2, __VA_ARGS__), SUM((i) + 3, __VA_ARGS__)
#define SIXTEEN(i, ...) \
    FOUR(i, __VA_ARGS__), FOUR((i) + 4, __VA_ARGS__), FOUR((i) + 8, __VA_ARGS__), FOUR((i) + 12, __VA_ARGS__)
#define SIXTY_FOUR(i, ...) \
    SIXTEEN(i, __VA_ARGS__), SIXTEEN((i) + 16, __VA_ARGS__), SIXTEEN((i) + 32, __VA_ARGS__), \
        SIXTEEN((i) + 48, __VA_ARGS__)
#define TABLE(...) \
    {SIXTY_FOUR(0, __VA_ARGS__), SIXTY_FOUR(64, __VA_ARGS__), SIXTY_FOUR(128, __VA_ARGS__), \
     SIXTY_FOUR(192, __VA_ARGS__)}

static const uint32_t tables[8][256] = {
    TABLE(0xedb88320, 0x76dc4190, 0x3b6e20c8, 0x1db71064, 0x0edb8832, 0x076dc419, 0xee0e612c, 0x77073096),
    TABLE(0x3b83984b, 0xf0794f05, 0x958424a2, 0x4ac21251, 0xc8d98a08, 0x646cc504, 0x32366282, 0x191b3141),
    TABLE(0xe1351b80, 0x709a8dc0, 0x384d46e0, 0x1c26a370, 0x0e1351b8, 0x0709a8dc, 0x0384d46e, 0x01c26a37),
    TABLE(0xed59b63b, 0x9b14583d, 0xa032af3e, 0x5019579f, 0xc5b428ef, 0x8f629757, 0xaa09c88b, 0xb8bc6765),
    TABLE(0xb1e6b092, 0x58f35849, 0xc1c12f04, 0x60e09782, 0x30704bc1, 0xf580a6c0, 0x7ac05360, 0x3d6029b0),
    TABLE(0x1eb014d8, 0x0f580a6c, 0x07ac0536, 0x03d6029b, 0xec53826d, 0x9b914216, 0x4dc8a10b, 0xcb5cd3a5),
    TABLE(0x8816eaf2, 0x440b7579, 0xcfbd399c, 0x67de9cce, 0x33ef4e67, 0xf44f2413, 0x979f1129, 0xa6770bb4),
    TABLE(0x533b85da, 0x299dc2ed, 0xf9766256, 0x7cbb312b, 0xd3e51bb5, 0x844a0efa, 0x4225077d, 0xccaa009e),
};

static uint32_t little_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

uint32_t sc_crc32(uint32_t crc, const void *bytes, size_t num_bytes) {
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; num_bytes >= 8; num_bytes -= 8, at += 8) {
        uint32_t low = little_endian(at) ^ crc, high = little_endian(at + 4);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
              tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^ tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    for (; num_bytes > 0; --num_bytes, ++at)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}

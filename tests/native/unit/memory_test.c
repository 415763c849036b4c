/* Every allocation fails once, and then all from it on: the library tells, and leaves nothing behind. Linked with
 * --wrap for malloc, calloc and realloc. */
#include "bits.h"
#include "buffer.h"
#include "check.h"
#include "connection_file.h"
#include "fields.h"

static long num_left = -1; /* allocations until they fail; -1: they do not */
static bool once;
static bool has_failed;

void *__real_malloc(size_t num_bytes);
void *__real_calloc(size_t num, size_t num_bytes);
void *__real_realloc(void *memory, size_t num_bytes);
void *__wrap_malloc(size_t num_bytes);
void *__wrap_calloc(size_t num, size_t num_bytes);
void *__wrap_realloc(void *memory, size_t num_bytes);

static bool fails(void) {
    if (num_left < 0 || num_left-- > 0)
        return false;
    num_left = once ? -1 : 0;
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t num_bytes) {
    return fails() ? NULL : __real_malloc(num_bytes);
}

void *__wrap_calloc(size_t num, size_t num_bytes) {
    return fails() ? NULL : __real_calloc(num, num_bytes);
}

void *__wrap_realloc(void *memory, size_t num_bytes) {
    return fails() ? NULL : __real_realloc(memory, num_bytes);
}

static sc_error error;

/* Of the folder that the command line names. */
typedef struct {
    const char *name;
    uint8_t bytes[1024];
    size_t num_bytes;
} message;

static message welcome = {.name = "welcome"}, opened = {.name = "opened"}, stop = {.name = "stop"};

static void load(message *it, const char *folder) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, it->name);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    it->num_bytes = fread(it->bytes, 1, sizeof it->bytes, file);
    fclose(file);
}

static int decode(const message *it) {
    sc_reply reply;
    int status = sc_decode_reply(it->bytes, it->num_bytes, &reply, &error);
    if (status == STREAM_OK)
        sc_reply_free(&reply);
    return status;
}

static int decode_welcome(void) {
    return decode(&welcome);
}

static int decode_opened(void) {
    return decode(&opened);
}

static int decode_stop(void) {
    return decode(&stop);
}

static int parse_a_connection_file(void) {
    static const char text[] =
        "{\"study\": \"s\", \"incarnation\": 1, \"host\": \"h\", \"control\": [\"a\", \"b\"], \"simulation\": 1,"
        "\"attempt\": 0, \"parameters\": {\"a\": 1, \"b\": 2, \"c\": 3, \"d\": 4, \"e\": 5}}";
    sc_connection_file file;
    int status = sc_connection_file_parse(text, sizeof text - 1, "FILE", &file, &error);
    if (status == STREAM_OK)
        sc_connection_file_free(&file);
    return status;
}

static int encode_a_hello(void) {
    char name[] = "left";
    char *names[] = {name};
    double values[] = {1.0};
    const sc_parameters parameters = {1, names, values};
    const sc_hello hello = {"heat", 1, 0, 0, 1, &parameters};
    int status = sc_check_parameters(&parameters, &error);
    if (status != STREAM_OK)
        return status;
    sc_message message = sc_encode_hello(&hello);
    if (message.bytes == NULL)
        return sc_no_memory(&error);
    sc_message_free(&message);
    return STREAM_OK;
}

static int put_a_field(void) {
    const sc_field spec = {.name = "u"};
    double number = 1.0;
    uint64_t present;
    sc_slice arrays[SC_MAX_FIELDS];
    sc_fields *fields = sc_fields_new(&spec, 1, 0, 1);
    if (fields == NULL)
        return sc_no_memory(&error);
    int status = sc_fields_put_array(fields, "u", STREAM_FLOAT64, 0, NULL, NULL, &number, &error);
    if (status == STREAM_OK)
        status = sc_fields_take(fields, &present, arrays, &error);
    else
        CHECK(sc_fields_take(fields, &present, arrays, &error) == STREAM_ERROR_ARGUMENT);
    sc_fields_free(fields);
    return status;
}

static int fill_bits(void) {
    sc_bits bits = {NULL, 0};
    bool has_memory = sc_bits_add(&bits, 3) == 1 && sc_bits_add(&bits, 100) == 1 && sc_bits_load(&bits, bits.bytes, 1);
    sc_bits_free(&bits);
    return has_memory ? STREAM_OK : sc_no_memory(&error);
}

static int share_memory(void) {
    sc_pool *pool = sc_pool_new();
    bool is_shared = pool != NULL && sc_pool_share(pool, 4096) != NULL;
    sc_pool_close(pool);
    return is_shared ? STREAM_OK : sc_no_memory(&error);
}

static void fail_at_each_allocation(int (*what)(void)) {
    CHECK(what() == STREAM_OK);
    int num = 0;
    do {
        has_failed = false;
        num_left = num++;
        int status = what();
        num_left = -1;
        CHECK(status == (has_failed ? STREAM_ERROR_MEMORY : STREAM_OK));
    } while (has_failed);
    CHECK(num > 1);
}

int main(int argc, char *argv[]) {
    CHECK(argc == 2);
    load(&welcome, argv[1]);
    load(&opened, argv[1]);
    load(&stop, argv[1]);
    for (int i = 0; i < 2; ++i) {
        once = i == 1;
        fail_at_each_allocation(decode_welcome);
        fail_at_each_allocation(decode_opened);
        fail_at_each_allocation(decode_stop);
        fail_at_each_allocation(parse_a_connection_file);
        fail_at_each_allocation(encode_a_hello);
        fail_at_each_allocation(put_a_field);
        fail_at_each_allocation(fill_bits);
        fail_at_each_allocation(share_memory);
    }
    return 0;
}

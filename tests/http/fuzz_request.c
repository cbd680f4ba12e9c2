/* Fuzzing the parser: any bytes, cut anywhere, are read as unsplit, within bounds and limits.
 * The first four bytes of an input seed the cuts. */
#include "requests.h"
#include "transcript.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *input, size_t size, size_t max_size);

static struct transcript whole, pieces;

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    uint32_t seed;
    if (size < sizeof seed)
        return 0;
    memcpy(&seed, input, sizeof seed);
    const char *bytes = (const char *)input + sizeof seed;
    size -= sizeof seed;

    transcript_init(&whole);
    transcript_feed(&whole, bytes, size);
    transcript_fini(&whole);
    transcript_init(&pieces);
    for (size_t at = 0, step; at < size; at += step) {
        seed = seed * 1664525 + 1013904223;
        step = 1 + (seed >> 16) % ((seed & 0x100) ? 8 : 64);
        step = step < size - at ? step : size - at;
        transcript_feed(&pieces, bytes + at, step);
    }
    transcript_fini(&pieces);
    if (strcmp(whole.text, pieces.text) != 0) {
        fprintf(stderr, "unsplit: %s\ncut: %s\n", whole.text, pieces.text);
        abort();
    }
    return 0;
}

/* Now and then a request of the table is put in, so that a short run gets past the first line. */
size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t size, size_t max_size, unsigned seed)
{
    const struct row *row = &rows[(seed >> 4) % row_count];
    if (seed % 16 == 0 && size >= 4 && row->length <= max_size - size) {
        size_t at = seed % 32 == 0 ? size : 4;
        memmove(input + at + row->length, input + at, size - at);
        memcpy(input + at, row->bytes, row->length);
        return size + row->length;
    }
    return LLVMFuzzerMutate(input, size, max_size);
}

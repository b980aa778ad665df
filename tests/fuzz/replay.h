/* The entry that a fuzz target defines, by libFuzzer's name. Returns 0; a find is a crash. */
#ifndef OCT_TESTS_FUZZ_REPLAY_H
#define OCT_TESTS_FUZZ_REPLAY_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif

/* SPDX-License-Identifier: MIT */
/* linked.c: a program that is linked with the driver's library. */
#include "work.h"

#define DECLARE(name, symbol, own, version, params) CUresult name params __asm__(symbol);
VICTIM_ENTRIES(DECLARE)

int main(int argc, char **argv) {
    static const struct cuda cuda = {
#define ENTRY(name, symbol, own, version, params) .name = name,
        VICTIM_ENTRIES(ENTRY)};

    victim_start(&cuda);
    victim_work(&cuda, "linked", 7);
    victim_graph(&cuda, "linked", 8);
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}

/* SPDX-License-Identifier: MIT */
/* test_model_virtual_mappings.c: mappings of handles, and access to them. */
#include "test_model_virtual.h"

CASE("mappings", 60, set_up_virtual, check_model);

TEST(a_mapping_wants_whole_reserved_addresses) {
    CUdeviceptr address = reserve_range_of(4 * UNIT);
    handle memory = create_handle(2 * UNIT), other = create_handle(UNIT);

    GIVES(WRONG, driver->cuMemMap(address + 4096, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT - 4096, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 0, 0, memory, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, driver->cuMemMap(address, UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 3 * UNIT, 0, memory, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, driver->cuMemMap(address, UNIT, UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, UNIT, 4096, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, UNIT, 2 * UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, 0, memory, 1));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, 0, memory + 8, 0));
    GIVES(WRONG, driver->cuMemMap(address + 3 * UNIT, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address - UNIT, UNIT, 0, other, 0));
    GIVES(WRONG, driver->cuMemMap(0, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(-(2 * UNIT), 2 * UNIT, 0, memory, 0));
    map_handle(address + UNIT, 2 * UNIT, memory);
    map_handle(address + 3 * UNIT, UNIT, other);
}

TEST(nothing_is_mapped_over_a_mapping) {
    CUdeviceptr address = reserve_range_of(6 * UNIT);
    handle memory = create_handle(2 * UNIT);

    back(address + 2 * UNIT, 2 * UNIT);
    CU(fill_async(address + 2 * UNIT, 2 * UNIT, 9));
    for (size_t at = 1; at <= 3; at++)
        GIVES(WRONG, driver->cuMemMap(address + at * UNIT, 2 * UNIT, 0, memory, 0));
    MUST_EQ(read_byte(address + 2 * UNIT), 9);
    map_handle(address, 2 * UNIT, memory);
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    map_handle(address + 4 * UNIT, 2 * UNIT, memory);
}

/* The model returns the results that it has for unknown addresses. */
TEST(without_access_there_is_nothing) {
    CUdeviceptr address = reserve_range_of(2 * UNIT);
    handle memory = create_handle(UNIT);
    char byte = 1;

    GIVES(WRONG, fill_async(address, 1, 1));
    map_handle(address, UNIT, memory);
    GIVES(WRONG, fill_async(address, 1, 1));
    GIVES(WRONG, driver->cuMemcpyHtoDAsync(address, &byte, 1, A));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    MUST(host_faults(address, 0));
    open_device_range(address, UNIT);
    CU(fill_async(address, UNIT, 1));
    GIVES(WRONG, fill_async(address + UNIT - 1, 2, 1)); /* its end is not mapped */
    CU(try_access(address, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(WRONG, fill_async(address, 1, 2));
    MUST(host_faults(address, 1) && !host_faults(address, 0));
    GIVES(WRONG, driver->cuMemcpyHtoDAsync(address, &byte, 1, A));
    MUST_EQ(read_byte(address), 1);
    CU(try_access(address, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    MUST(host_faults(address, 0));
    open_device_range(address, UNIT);
    MUST_EQ(read_byte(address), 1);
}

TEST(access_is_of_whole_mappings_without_gaps) {
    CUdeviceptr address = reserve_range_of(8 * UNIT);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags all = access.flags;

    map_handle(address, 2 * UNIT, create_handle(2 * UNIT));
    map_handle(address + 2 * UNIT, UNIT, create_handle(UNIT));
    map_handle(address + 4 * UNIT, UNIT, create_handle(UNIT));
    GIVES(WRONG, try_access(address, UNIT, 0, all));
    GIVES(WRONG, try_access(address + UNIT, UNIT, 0, all));
    GIVES(WRONG, try_access(address + UNIT, 2 * UNIT, 0, all));
    GIVES(WRONG, try_access(address, 4 * UNIT, 0, all));
    GIVES(WRONG, try_access(address, 5 * UNIT, 0, all));
    GIVES(WRONG, try_access(address + 5 * UNIT, UNIT, 0, all));
    GIVES(WRONG, try_access(address, 0, 0, all));
    GIVES(WRONG, try_access(address, UNIT + 4096, 0, all));
    GIVES(WRONG, try_access(address, 3 * UNIT, 0, 2));
    GIVES(CUDA_ERROR_INVALID_DEVICE, try_access(address, 3 * UNIT, 1, all));
    GIVES(WRONG, driver->cuMemSetAccess(address, 3 * UNIT, &access, 0));
    GIVES(WRONG, driver->cuMemSetAccess(address, 3 * UNIT, NULL, 1));
    GIVES(WRONG, fill_async(address, 1, 1)); /* the failed calls changed nothing */
    open_device_range(address, 3 * UNIT);
    CU(fill_async(address, 3 * UNIT, 1));
    GIVES(WRONG, fill_async(address + 4 * UNIT, 1, 1));
}

TEST(work_goes_over_mappings_side_by_side) {
    CUdeviceptr address = reserve_range_of(4 * UNIT);

    back(address, UNIT);
    back(address + UNIT, 2 * UNIT);
    CU(fill_async(address + UNIT / 2, 2 * UNIT, 5));
    MUST_EQ(read_byte(address + UNIT - 1), 5);
    MUST_EQ(read_byte(address + UNIT), 5);
    MUST_EQ(read_byte(address + 5 * UNIT / 2), 0);
    GIVES(WRONG, fill_async(address + UNIT / 2, 3 * UNIT, 5));
    CU(try_access(address + UNIT, 2 * UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(WRONG, fill_async(address + UNIT / 2, 2 * UNIT, 5));
}

TEST(two_addresses_may_mean_the_same_memory) {
    CUdeviceptr one = reserve_range_of(UNIT), other = reserve_range_of(UNIT);
    handle memory = back(one, UNIT);

    map_handle(other, UNIT, memory);
    open_device_range(other, UNIT);
    CU(fill_async(one, UNIT, 1));
    MUST_EQ(read_byte(other + 77), 1);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(one, UNIT));
    MUST_EQ(read_byte(other), 1);
    GIVES(WRONG, fill_async(one, 1, 1));
    MUST(host_faults(one, 0));
}

TEST(memory_goes_with_its_last_mapping_and_its_name) {
    size_t before = device_free();
    CUdeviceptr one = reserve_range_of(UNIT), other = reserve_range_of(UNIT);
    handle memory = back(one, UNIT);

    map_handle(other, UNIT, memory);
    CU(driver->cuMemRelease(memory));
    GIVES(WRONG, driver->cuMemRelease(memory));
    CU(driver->cuMemUnmap(other, UNIT));
    GIVES(WRONG, driver->cuMemMap(other, UNIT, 0, memory, 0));
    CU(fill_async(one, UNIT, 4));
    MUST_EQ(read_byte(one), 4);
    MUST_EQ(device_free(), before - UNIT);
    CU(driver->cuMemUnmap(one, UNIT));
    MUST_EQ(device_free(), before);
}

TEST(no_part_of_a_mapping_is_unmapped) {
    CUdeviceptr address = reserve_range_of(8 * UNIT);

    back(address + UNIT, 3 * UNIT);
    back(address + 4 * UNIT, UNIT);
    back(address + 6 * UNIT, UNIT);
    CU(fill_async(address + UNIT, 4 * UNIT, 6));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, 3 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address, 4 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 5 * UNIT)); /* a gap behind */
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 6 * UNIT)); /* a gap between */
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 0));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 3 * UNIT + 4096));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, -UNIT));
    MUST_EQ(read_byte(address + UNIT), 6);
    MUST_EQ(read_byte(address + 5 * UNIT - 1), 6);
    CU(driver->cuMemUnmap(address + UNIT, 4 * UNIT)); /* both at once */
    CU(driver->cuMemUnmap(address + 6 * UNIT, UNIT));
    CU(driver->cuMemAddressFree(address, 8 * UNIT));
}

TEST(where_nothing_is_mapped_unmapping_has_nothing_to_do) {
    CUdeviceptr address = reserve_range_of(8 * UNIT), gone = reserve_range_of(4 * UNIT);

    CU(driver->cuMemAddressFree(gone, 4 * UNIT));
    CU(driver->cuMemUnmap(address, 8 * UNIT));
    back(address + 2 * UNIT, 2 * UNIT);
    CU(fill_async(address + 2 * UNIT, 2 * UNIT, 6));
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    CU(driver->cuMemUnmap(address + 5 * UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(gone, 4 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address, 4 * UNIT));
    MUST_EQ(read_byte(address + 2 * UNIT), 6);
    CU(driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    CU(driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    CU(driver->cuMemAddressFree(address, 8 * UNIT));
}

TEST(a_mapping_is_no_block) {
    CUdeviceptr address = reserve_range_of(UNIT);

    back(address, UNIT);
    GIVES(WRONG, driver->cuMemFree(address));
    GIVES(WRONG, driver->cuMemFreeAsync(address, A));
    CU(fill_async(address, UNIT, 1));
}

/* An arena grows at its end by thousands of single units, and is unmapped at once. */
TEST(thousands_of_handles_make_one_range) {
    enum { UNITS = 2048 };
    static handle memory[UNITS];
    CUdeviceptr address;
    size_t before;

    if (!is_roomy())
        return;
    start_model(0);
    before = device_free();
    address = reserve_range_of(UNITS * UNIT);
    for (size_t i = 0; i < UNITS; i++)
        memory[i] = create_handle(UNIT);
    for (size_t i = 0; i < UNITS; i++)
        map_handle(address + i * UNIT, UNIT, memory[i % 2 ? i : UNITS - 2 - i]);
    open_device_range(address, UNITS * UNIT);
    for (size_t i = 0; i < UNITS - 1; i += 64)
        CU(fill_async(address + i * UNIT + UNIT - 1, 2, (unsigned char)i));
    for (size_t i = 0; i < UNITS - 1; i += 64)
        MUST_EQ(read_byte(address + (i + 1) * UNIT), (unsigned char)i);
    check_model();
    CU(driver->cuMemUnmap(address, UNITS * UNIT));
    for (size_t i = 0; i < UNITS; i++)
        CU(driver->cuMemRelease(memory[i]));
    MUST_EQ(device_free(), before);
}

static void *move_units(void *argument) {
    enum { UNITS = 8 };
    uint64_t random = 1 + (uintptr_t)argument;
    CUdeviceptr address = reserve_range_of(UNITS * UNIT);
    handle memory[UNITS];
    unsigned char value[UNITS];

    for (size_t i = 0; i < UNITS; i++) {
        value[i] = (unsigned char)next_random(&random);
        memory[i] = back(address + i * UNIT, UNIT);
        memset((void *)(uintptr_t)(address + i * UNIT), value[i], 4096);
    }
    for (int round = 0; round < 50; round++) { /* two change places */
        size_t a = next_random(&random) % UNITS, b = next_random(&random) % UNITS;
        handle other = memory[a];
        unsigned char byte = value[a];

        CU(driver->cuMemUnmap(address + a * UNIT, UNIT));
        if (a != b)
            CU(driver->cuMemUnmap(address + b * UNIT, UNIT));
        memory[a] = memory[b], memory[b] = other;
        value[a] = value[b], value[b] = byte;
        map_handle(address + a * UNIT, UNIT, memory[a]);
        if (a != b)
            map_handle(address + b * UNIT, UNIT, memory[b]);
        open_device_range(address, UNITS * UNIT);
        for (size_t i = 0; i < UNITS; i++)
            MUST_EQ(*(unsigned char *)(uintptr_t)(address + i * UNIT + 99), value[i]);
    }
    CU(driver->cuMemUnmap(address, UNITS * UNIT));
    for (size_t i = 0; i < UNITS; i++)
        CU(driver->cuMemRelease(memory[i]));
    CU(driver->cuMemAddressFree(address, UNITS * UNIT));
    return NULL;
}

TEST(threads_move_handles_beside_each_other) {
    size_t before = device_free();
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++)
        GIVES(0, pthread_create(&threads[i], NULL, move_units, (void *)i));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    MUST_EQ(device_free(), before);
}

SUITE("model-virtual mappings", CK_FORK_GETENV);

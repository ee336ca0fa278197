/* SPDX-License-Identifier: MIT */
/* test_public_library.c: the shared library from the view of a program.
 *
 * conformance.c tests the functions, with all code linked in.  This file tests faults between the code and libweir.so:
 * a public name that the symbol map lacks, an internal name that it exports, or a version that is not the package's. */
#include <weir/weir.h>

#include <dlfcn.h>

#include "config.h"
#include "tests/fixtures/suite.h"

CASE("shared", 4, NULL, NULL);

/* The program itself exports nothing, so that dlsym finds the library's names. */
TEST(internal_names_stay_inside) {
    ck_assert_msg(dlsym(RTLD_DEFAULT, "weir_alloc") != NULL, "not linked to the shared library");
    ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "weir__driver_open"));
    ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "weir__placement_alloc"));
}

TEST(the_version_is_the_packages) {
    ck_assert_str_eq(weir_version(), PACKAGE_VERSION);
}

static const int engines[] = {WEIR_ENGINE_POOL, WEIR_ENGINE_BFC, WEIR_ENGINE_DIRECT};

TEST_EACH(ROWS(engines), a_block_from_each_engine) {
    weir_options options;
    weir_allocator *allocator;
    weir_statistics statistics = {.size = sizeof statistics};
    weir_stream stream = (weir_stream)0x2;
    void *block;

    ck_assert_int_eq(weir_options_init(&options), WEIR_OK);
    options.device = "model";
    options.engine = engines[_i];
    ck_assert_int_eq(weir_allocator_create(&options, &allocator), WEIR_OK);
    ck_assert_int_eq(weir_alloc(allocator, 1 << 20, stream, &block), WEIR_OK);
    ck_assert_ptr_nonnull(block);
    ck_assert_int_eq(weir_allocator_destroy(allocator), WEIR_E_BUSY);
    ck_assert_int_eq(weir_free(allocator, block, stream), WEIR_OK);
    ck_assert_int_eq(weir_stats(allocator, &statistics), WEIR_OK);
    ck_assert_uint_eq(statistics.allocs, 1);
    ck_assert_uint_eq(statistics.frees, 1);
    ck_assert_int_eq(weir_allocator_destroy(allocator), WEIR_OK);
}

SUITE("library", CK_FORK_GETENV);

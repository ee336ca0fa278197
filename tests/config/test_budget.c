/* SPDX-License-Identifier: MIT */
/* test_budget.c: amounts of memory as bytes of a device. */
#include "config/amount.h"
#include "tests/fixtures/suite.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define STANDARD UINT64_C(12345)

/* An H200 of 143,156 MiB, of which 1,000,000,100 bytes are free. */
static const struct weir_device_memory device = {150109880320, 1000000100};

static const struct {
    weir_amount amount;
    uint64_t expected;
} cases[] = {
    {{0, WEIR_AMOUNT_DEFAULT}, STANDARD},
    {{0, WEIR_AMOUNT_MAX}, UINT64_MAX},
    {{0, WEIR_AMOUNT_BYTES}, 0},
    {{1, WEIR_AMOUNT_BYTES}, 1},
    {{UINT64_MAX, WEIR_AMOUNT_BYTES}, UINT64_MAX},
    {{1000000, WEIR_AMOUNT_OF_TOTAL}, 150109880320},
    {{750000, WEIR_AMOUNT_OF_TOTAL}, 112582410240},
    {{500000, WEIR_AMOUNT_OF_TOTAL}, 75054940160},
    {{333333, WEIR_AMOUNT_OF_TOTAL}, 50036576512},  /* 50,036,576,736.7 rounded down to 256 */
    {{999999, WEIR_AMOUNT_OF_TOTAL}, 150109730048}, /* 150,109,730,210.1 */
    {{1, WEIR_AMOUNT_OF_TOTAL}, 150016},
    {{0, WEIR_AMOUNT_OF_TOTAL}, 0},
    {{1000000, WEIR_AMOUNT_OF_FREE}, 1000000000},
    {{900000, WEIR_AMOUNT_OF_FREE}, 900000000},      /* 900,000,090 */
    {{2000000, WEIR_AMOUNT_OF_TOTAL}, 150109880320}, /* at most the device's memory */
    {{UINT64_MAX, WEIR_AMOUNT_OF_TOTAL}, 150109880320},
};

CASE("budget", 30, NULL, NULL);

TEST_EACH(ROWS(cases), test_amount) {
    ck_assert_uint_eq(weir__budget_bytes(&cases[_i].amount, &device, STANDARD), cases[_i].expected);
}

/* The arithmetic does not overflow on the largest device. */
TEST(test_the_largest_device_does_not_overflow) {
    struct weir_device_memory large = {UINT64_MAX, UINT64_MAX};
    weir_amount amount = {1000000, WEIR_AMOUNT_OF_TOTAL};

    ck_assert_uint_eq(weir__budget_bytes(&amount, &large, 0), UINT64_MAX - 255);
    amount.value = 500000;
    ck_assert_uint_eq(weir__budget_bytes(&amount, &large, 0), UINT64_MAX / 2 - 255);
    amount.kind = WEIR_AMOUNT_OF_FREE;
    amount.value = 1;
    ck_assert_uint_eq(weir__budget_bytes(&amount, &large, 0), 18446744073472); /* ...709.5 */
}

TEST(test_an_empty_device_has_a_budget_of_zero) {
    struct weir_device_memory none = {0, 0};
    weir_amount amount = {750000, WEIR_AMOUNT_OF_TOTAL};

    ck_assert_uint_eq(weir__budget_bytes(&amount, &none, 0), 0);
}

TEST(test_share_of_what_is_in_use) {
    static const struct {
        weir_amount amount;
        uint64_t in_use, peak, expected;
    } shares[] = {
        {{0, WEIR_AMOUNT_DEFAULT}, 0, 0, 16777216},
        {{0, WEIR_AMOUNT_DEFAULT}, 0, 268435456, 16777216},
        {{0, WEIR_AMOUNT_DEFAULT}, 0, 268435457, 0}, /* no longer a small program */
        {{0, WEIR_AMOUNT_DEFAULT}, 5000005000, 5000005000, 100000000}, /* rounded down to 256 */
        {{50000, WEIR_AMOUNT_OF_IN_USE}, 1024000, 0, 51200},
        {{50000, WEIR_AMOUNT_OF_IN_USE}, 0, 0, 0},
        {{0, WEIR_AMOUNT_OF_IN_USE}, 1024000, 0, 0},
        {{1000000, WEIR_AMOUNT_OF_IN_USE}, UINT64_MAX, 0, UINT64_MAX - 255},
        {{0, WEIR_AMOUNT_BYTES}, 1024000, 0, 0},
        {{67108864, WEIR_AMOUNT_BYTES}, 0, 0, 67108864},
        {{0, WEIR_AMOUNT_MAX}, 0, 0, UINT64_MAX},
    };

    for (size_t i = 0; i < COUNT(shares); i++)
        ck_assert_uint_eq(
            weir__budget_of_in_use(&shares[i].amount, shares[i].in_use, shares[i].peak),
            shares[i].expected);
}

TEST(test_shares_rise) {
    weir_amount amount = {0, WEIR_AMOUNT_OF_TOTAL};
    uint64_t before = 0;

    for (amount.value = 0; amount.value <= 1000000; amount.value += 7) {
        uint64_t bytes = weir__budget_bytes(&amount, &device, 0);

        MUST_BE_WITHIN(before, bytes, device.total);
        ck_assert_uint_eq(bytes % 256, 0);
        before = bytes;
    }
}

SUITE("budget", CK_FORK_GETENV);

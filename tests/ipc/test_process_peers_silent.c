/* SPDX-License-Identifier: MIT */
/* test_process_peers_silent.c: processes that do not answer, end, or have ended. */
#include "test_process_peers.h"

CASE("silent", 60, set_up, tear_down);

TEST(test_nobody_waits_long_for_a_stopped_one) {
    struct child stopped, needy;
    uint64_t began, first, second;

    start_beside(&stopped, 896, &needy, "0 recovery-timeout 2s"); /* others have 200 ms */
    stop(&stopped);
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    first = now_ms() - began;
    ck_assert_uint_le(first, 1900); /* far less, unless the machine is busy */
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY"); /* it is left alone */
    second = now_ms() - began;
    ck_assert_uint_le(second, first + 100);
    ck_assert_uint_eq(figures_of(&needy).received_mib, 0);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    nap(2100);
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&stopped).released_mib, 384);
}

/* As at the end of a login session. */
TEST(test_an_idle_holder_comes_back_into_a_new_file) {
    struct weir_registry_entry entry = {0};
    struct weir_registry before, registry;
    struct child holder;
    int is_back = 0;
    uint64_t began;

    start(&holder, "0");
    takes(&holder, 2, 64);
    start_model(CAPACITY);
    look_at_registry(&before); /* which rings only as it is closed */
    ck_assert_int_eq(unlink(before.path), 0);
    began = now_ms();
    open_registry(&registry); /* a process that comes later */
    while (!is_back && now_ms() - began < 5000) {
        nap(20);
        for (int slot = 0; slot < WEIR_REGISTRY_SLOTS && !is_back; slot++)
            is_back = weir__registry_read(&registry, slot, &entry) &&
                      entry.pid == (uint64_t)holder.pid && entry.in_use >= 128 * MIB;
    }
    ck_assert(is_back);
    weir__registry_close(&before);
    weir__registry_close(&registry);
    end(&holder);
    ck_assert(!registries());
}

/* Why it was refused names who has what it lacks, and no setting that would not have helped; but where nobody is silent
 * the advice to who came first is to preallocate, and to who did not to wait. */
TEST_EACH(2, test_an_oom_report_beside_a_stopped_one) {
    struct child stopped, needy;
    char wanted[160];

    if (_i == 0)
        start(&needy, "0 recovery-timeout 500ms");
    start(&stopped, "0");
    fill(&stopped, 896);
    expect(&stopped, "take 256", "WEIR_OK");
    stop(&stopped);
    if (_i == 1)
        start(&needy, "0 recovery-timeout 500ms");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask(&needy, "why");
    snprintf(wanted, sizeof wanted, "|              process %d has 896MiB of it, and is stopped|",
             (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    snprintf(wanted, sizeof wanted, "|  Continue process %d (kill -CONT %d), or end it.|",
             (int)stopped.pid, (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "--prealloc"));
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    expect(&stopped, "take 512", "WEIR_OK");
    do { /* on a machine that is busy it may be late */
        expect(&needy, "take 576", "WEIR_E_NO_MEMORY");
        ask(&needy, "why");
    } while (strstr(needy.reply, "of it, and does not answer"));
    ck_assert_msg(strstr(needy.reply, _i == 0 ? "|  Try --prealloc 576MiB"
                                              : "|  Wait for other processes") != NULL,
                  "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
}

/* Of several that answer the one that has most is named, with what it could give: nothing more, where it was asked;
 * where nobody was, since no wait is wanted, a wait is what to try, if that is enough. */
TEST_EACH(3, test_an_oom_report_beside_living_ones) {
    static const struct {
        const char *words, *request, *has, *advice;
    } cases[] = {
        {"0", "take 512", "512MiB, could release 0B", "Wait for other processes"},
        {"0 recovery-timeout 0", "take 512", "640MiB, could release 128MiB",
         "Wait for other processes"},
        {"0 recovery-timeout 0", "take 192", "640MiB, could release 128MiB",
         "Try --recovery-timeout 1s"},
    };
    struct child more, less, needy;
    char wanted[160];

    start_each("0", &less, &more);
    expect(&less, "take 256", "WEIR_OK");
    fill(&more, 640);
    expect(&more, "take 512", "WEIR_OK");
    start(&needy, "%s", cases[_i].words);
    snprintf(wanted, sizeof wanted, " (process %d) has %s|", (int)more.pid, cases[_i].has);
    for (int i = 0; i < 1000; i++) { /* it says what it has once it has heard of somebody */
        expect(&needy, cases[_i].request, "WEIR_E_NO_MEMORY");
        ask(&needy, "why");
        if (strstr(needy.reply, wanted))
            break;
    }
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    end(&needy);
    start(&needy, "0 recovery-timeout 1s");
    expect(&needy, "take 192", "WEIR_OK");
}

/* Who takes no part in the registry is told to, where those who do have what is lacking; not for what its own process has
 * there, nor for what others have who take no part either. */
TEST_EACH(6, test_an_oom_report_without_the_registry) {
    static const struct {
        const char *other, *request, *advice;
    } cases[] = {
        {"0", "0 registry off", "Try --registry on (WEIR_REGISTRY=on).|"},
        {"0", "0 registry off recovery-timeout 0", "Try --registry on --recovery-timeout 1s|"},
        {"0 registry off", "0 registry off", "Wait for other processes, or end them (weir info "},
        {"", "4 registry off", "Trim the other pools, or free their blocks: no setting makes room.|"},
        {"0", "0 registry off", "Wait for other processes, or end them (weir info "},
        {"0 registry off", "0 registry off", "Wait for other processes, or end them (weir info "},
    };
    struct child other, small, needy;
    char wanted[160];

    if (cases[_i].other[0]) {
        start(&other, "%s", cases[_i].other);
        fill(&other, 768);
    }
    if (_i == 2) { /* too little */
        start(&small, "0");
        expect(&small, "take 64", "WEIR_OK");
    }
    start(&needy, "%s", cases[_i].request);
    if (!cases[_i].other[0])
        expect(&needy, "also 768", "WEIR_OK");
    if (_i == 4) /* whose registry it would be, nobody can tell */
        expect(&needy, "nameless", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask(&needy, "why");
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    end(&needy);
    if (_i >= 2)
        return;
    start(&needy, "0 recovery-timeout 1s");
    expect(&needy, "take 512", "WEIR_OK");
}

/* Another process is listed even if an allocator of this process has more. */
TEST_EACH(2, test_an_oom_report_beside_one_of_its_own) {
    struct child other, needy;
    char wanted[160];

    start(&other, "0");
    if (_i == 0)
        expect(&other, "take 256", "WEIR_OK");
    else
        fill(&other, 256);
    start(&needy, "0 recovery-timeout 0");
    expect(&needy, "also 384", "WEIR_OK");
    snprintf(wanted, sizeof wanted, " (process %d) has 256MiB, could release ", (int)other.pid);
    for (int i = 0; i < 100; i++) { /* it says what it has once it has heard of somebody */
        expect(&needy, "take 480", "WEIR_E_NO_MEMORY");
        ask(&needy, "why");
        ck_assert_msg(strstr(needy.reply, ": other weir pools of this process have 384MiB of the "
                                          "device|") != NULL,
                      "%s", needy.reply);
        if (strstr(needy.reply, wanted))
            break;
        nap(10);
    }
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
}

/* Several that have a little each are listed, too. */
TEST(test_an_oom_report_beside_small_ones) {
    struct child one, other, needy;

    start_each("0", &one, &other);
    start(&needy, "0 recovery-timeout 0");
    expect(&one, "take 64", "WEIR_OK");
    expect(&other, "take 64", "WEIR_OK");
    expect(&needy, "take 960", "WEIR_E_NO_MEMORY");
    ask(&needy, "why");
    ck_assert_msg(strstr(needy.reply, "others have 128MiB of it|  holders     ") != NULL, "%s",
                  needy.reply);
    for (int i = 0; i < 2; i++) {
        char wanted[64];

        snprintf(wanted, sizeof wanted, " (process %d) has 64MiB, could release ",
                 (int)(i == 0 ? one : other).pid);
        ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    }
    ck_assert_msg(strstr(needy.reply,
                         "|              contexts, and memory that weir does not serve: ") != NULL,
                  "%s", needy.reply);
}

/* Nor where the driver does not say what is free, so that it is not known what is lacking. */
TEST(test_an_oom_report_without_what_is_free) {
    struct child other, needy;

    start(&other, "0");
    start(&needy, "0 recovery-timeout 0");
    expect(&other, "take 896", "WEIR_OK");
    expect(&needy, "blind", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask(&needy, "why");
    ck_assert_msg(strstr(needy.reply, "  cause       others: ") != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "  holders "));
}

/* What it has would not have done, or the driver refuses what nobody has. */
TEST(test_an_oom_report_beside_a_stopped_one_that_has_little) {
    struct child stopped, busy, needy;

    start_each("0", &stopped, &busy);
    start(&needy, "0 recovery-timeout 500ms");
    expect(&stopped, "take 64", "WEIR_OK");
    takes(&busy, 10, 64);
    stop(&stopped);
    for (int i = 0; i < 2; i++) {
        expect(&needy, i == 0 ? "take 512" : "take 128", "WEIR_E_NO_MEMORY");
        ask(&needy, "why");
        ck_assert_msg(
            strstr(needy.reply, i == 0 ? "cause       others: " : "cause       driver: ") != NULL,
            "%s", needy.reply);
        ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
        expect(&needy, "refuse", "it will");
    }
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* Who is asked may be late, on a machine that is busy; the request has time. */
TEST(test_who_answers_late_is_waited_for) {
    struct child late, needy;

    start_beside(&late, 896, &needy, "0"); /* others have 2 s, and a quarter of it to answer */
    stop(&late);
    say(&needy, "take 512");
    nap(900);
    ck_assert_int_eq(kill(late.pid, SIGCONT), 0);
    hears(&needy, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&late).released_mib, 384);
    ck_assert_uint_ge(figures_of(&needy).received_mib, 384);
}

/* Not each time again either: a program may ask for its context again and again. */
TEST(test_a_context_waits_for_a_stopped_one_once) {
    struct child stopped, idle, needy;
    unsigned long long took, least = UINT64_MAX;
    int any, all = 0;

    start_beside(&stopped, 512, &needy, "none");
    stop(&stopped);
    for (int i = 0; i < 6; i++) {
        ask(&needy, "context");
        ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
        all += any; /* once it may still give */
        least = took < least ? took : least;
    }
    ck_assert_int_lt(all, 6);
    ck_assert_uint_lt(least, 100); /* a quarter of a second, if it waited */
    start(&idle, "0");
    fill(&idle, 384);
    ask(&needy, "context");
    ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
    ck_assert_int_eq(any, 1);
    ck_assert_uint_ge(figures_of(&idle).released_mib, 320);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* It weighs nothing, as long as it has no allocator. */
TEST(test_a_share_after_a_context) {
    struct child first, second;

    start(&first, "none");
    ask(&first, "context");
    expect(&first, "share", "WEIR_OK");
    expect(&first, "limit", "1024");
    start(&second, "0 limit share");
    expect(&second, "limit", "512");
}

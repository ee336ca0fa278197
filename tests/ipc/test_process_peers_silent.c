/* SPDX-License-Identifier: MIT */
/* test_process_peers_silent.c: processes that do not answer, end, or have ended. */
#include "test_process_peers.h"

CASE("silent", 60, set_up_peers, tear_down_peers);

TEST(test_nobody_waits_long_for_a_stopped_one) {
    struct child stopped, needy;
    uint64_t began, first, second;

    start_beside(&stopped, 896, &needy, "0 recovery-timeout 2s"); /* others have 200 ms to answer */
    stop(&stopped);
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    first = now_ms() - began;
    ck_assert_uint_le(first, 1900); /* far less, unless the machine is busy */
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY"); /* the stopped process is not asked */
    second = now_ms() - began;
    ck_assert_uint_le(second, first + 100);
    ck_assert_uint_eq(figures_of(&needy).received_mib, 0);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    sleep_for_ms(2100);
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&stopped).released_mib, 384);
}

/* The end of a login session removes the registry's file. */
TEST(test_an_idle_holder_comes_back_into_a_new_file) {
    struct weir_registry_entry entry = {0};
    struct weir_slot_file before, registry;
    struct child holder;
    int is_back = 0;
    uint64_t began;

    start(&holder, "0");
    peer_allocates(&holder, 2, 64);
    start_model(CAPACITY);
    look_at_registry(&before); /* rings only when it is closed */
    ck_assert_int_eq(unlink(before.path), 0);
    began = now_ms();
    open_device_registry(&registry); /* a process that comes later */
    while (!is_back && now_ms() - began < 5000) {
        sleep_for_ms(20);
        for (int slot = 0; slot < WEIR_SLOTS && !is_back; slot++)
            is_back = weir__registry_read(&registry, slot, &entry) &&
                      entry.pid == (uint64_t)holder.pid && entry.in_use >= 128 * MIB;
    }
    ck_assert(is_back);
    weir__registry_close(&before);
    weir__registry_close(&registry);
    end_peer_child(&holder);
    ck_assert(!registries());
}

/* The OOM report names the silent process that has the missing memory, and no setting that would not have helped.  If
 * no process is silent, it advises the first process to preallocate, and a later one to wait. */
TEST_EACH(2, test_an_oom_report_beside_a_stopped_one) {
    struct child stopped, needy;
    char wanted[160];

    if (_i == 0)
        start(&needy, "0 recovery-timeout 500ms");
    start(&stopped, "0");
    fill_peer(&stopped, 896);
    expect(&stopped, "take 256", "WEIR_OK");
    stop(&stopped);
    if (_i == 1)
        start(&needy, "0 recovery-timeout 500ms");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask_peer(&needy, "why");
    snprintf(wanted, sizeof wanted, "|              process %d has 896MiB of it, and is stopped|",
             (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    snprintf(wanted, sizeof wanted, "|  Continue process %d (kill -CONT %d), or end it.|",
             (int)stopped.pid, (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "--prealloc"));
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    expect(&stopped, "take 512", "WEIR_OK");
    do { /* a busy machine may delay the answer */
        expect(&needy, "take 576", "WEIR_E_NO_MEMORY");
        ask_peer(&needy, "why");
    } while (strstr(needy.reply, "of it, and does not answer"));
    ck_assert_msg(strstr(needy.reply, _i == 0 ? "|  Try --prealloc 576MiB"
                                              : "|  Wait for other processes") != NULL,
                  "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
}

/* The OOM report names the answering process with most memory, and the bytes that it could free.  They are 0 if it was
 * asked.  If it was not asked, since the timeout is 0, the report advises a wait if those bytes are enough. */
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
    fill_peer(&more, 640);
    expect(&more, "take 512", "WEIR_OK");
    start(&needy, "%s", cases[_i].words);
    snprintf(wanted, sizeof wanted, " (process %d) has %s|", (int)more.pid, cases[_i].has);
    for (int i = 0; i < 1000; i++) { /* a process publishes once it has heard of another */
        expect(&needy, cases[_i].request, "WEIR_E_NO_MEMORY");
        ask_peer(&needy, "why");
        if (strstr(needy.reply, wanted))
            break;
    }
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    end_peer_child(&needy);
    start(&needy, "0 recovery-timeout 1s");
    expect(&needy, "take 192", "WEIR_OK");
}

/* A process without the registry is advised to use it if processes in the registry have the missing memory.  Memory of
 * that process or of others without the registry does not count. */
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
        fill_peer(&other, 768);
    }
    if (_i == 2) { /* the member has too little memory */
        start(&small, "0");
        expect(&small, "take 64", "WEIR_OK");
    }
    start(&needy, "%s", cases[_i].request);
    if (!cases[_i].other[0])
        expect(&needy, "also 768", "WEIR_OK");
    if (_i == 4) /* a device without a UUID has no registry */
        expect(&needy, "nameless", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask_peer(&needy, "why");
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    end_peer_child(&needy);
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
        fill_peer(&other, 256);
    start(&needy, "0 recovery-timeout 0");
    expect(&needy, "also 384", "WEIR_OK");
    snprintf(wanted, sizeof wanted, " (process %d) has 256MiB, could release ", (int)other.pid);
    for (int i = 0; i < 100; i++) { /* a process publishes once it has heard of another */
        expect(&needy, "take 480", "WEIR_E_NO_MEMORY");
        ask_peer(&needy, "why");
        ck_assert_msg(strstr(needy.reply, ": other weir pools of this process have 384MiB of the "
                                          "device|") != NULL,
                      "%s", needy.reply);
        if (strstr(needy.reply, wanted))
            break;
        sleep_for_ms(10);
    }
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
}

/* Processes that have little memory each are listed, too. */
TEST(test_an_oom_report_beside_small_ones) {
    struct child one, other, needy;

    start_each("0", &one, &other);
    start(&needy, "0 recovery-timeout 0");
    expect(&one, "take 64", "WEIR_OK");
    expect(&other, "take 64", "WEIR_OK");
    expect(&needy, "take 960", "WEIR_E_NO_MEMORY");
    ask_peer(&needy, "why");
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

/* The driver does not report free memory, so the missing bytes are not known, and no process is listed. */
TEST(test_an_oom_report_without_what_is_free) {
    struct child other, needy;

    start(&other, "0");
    start(&needy, "0 recovery-timeout 0");
    expect(&other, "take 896", "WEIR_OK");
    expect(&needy, "blind", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ask_peer(&needy, "why");
    ck_assert_msg(strstr(needy.reply, "  cause       others: ") != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "  holders "));
}

/* The stopped process has too little memory to help, or the driver refuses free memory. */
TEST(test_a_stopped_peer_with_little_memory_is_no_cause) {
    struct child stopped, busy, needy;

    start_each("0", &stopped, &busy);
    start(&needy, "0 recovery-timeout 500ms");
    expect(&stopped, "take 64", "WEIR_OK");
    peer_allocates(&busy, 10, 64);
    stop(&stopped);
    for (int i = 0; i < 2; i++) {
        expect(&needy, i == 0 ? "take 512" : "take 128", "WEIR_E_NO_MEMORY");
        ask_peer(&needy, "why");
        ck_assert_msg(
            strstr(needy.reply, i == 0 ? "cause       others: " : "cause       driver: ") != NULL,
            "%s", needy.reply);
        ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
        expect(&needy, "refuse", "it will");
    }
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* A process may answer late on a busy machine. */
TEST(test_who_answers_late_is_waited_for) {
    struct child late, needy;

    start_beside(&late, 896, &needy, "0"); /* others have 2 s, and 0.5 s to answer */
    stop(&late);
    send_line(&needy, "take 512");
    sleep_for_ms(900);
    ck_assert_int_eq(kill(late.pid, SIGCONT), 0);
    hears(&needy, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&late).released_mib, 384);
    ck_assert_uint_ge(figures_of(&needy).received_mib, 384);
}

/* A program may try to open its context again and again, and not each try waits. */
TEST(test_a_context_waits_for_a_stopped_one_once) {
    struct child stopped, idle, needy;
    unsigned long long took, least = UINT64_MAX;
    int any, all = 0;

    start_beside(&stopped, 512, &needy, "none");
    stop(&stopped);
    for (int i = 0; i < 6; i++) {
        ask_peer(&needy, "context");
        ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
        all += any; /* 1 while it may still free memory */
        least = took < least ? took : least;
    }
    ck_assert_int_lt(all, 6);
    ck_assert_uint_lt(least, 100); /* a wait takes 250 ms */
    start(&idle, "0");
    fill_peer(&idle, 384);
    ask_peer(&needy, "context");
    ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
    ck_assert_int_eq(any, 1);
    ck_assert_uint_ge(figures_of(&idle).released_mib, 320);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* A process without an allocator has no weight. */
TEST(test_a_share_after_a_context) {
    struct child first, second;

    start(&first, "none");
    ask_peer(&first, "context");
    expect(&first, "share", "WEIR_OK");
    expect(&first, "limit", "1024");
    start(&second, "0 limit share");
    expect(&second, "limit", "512");
}

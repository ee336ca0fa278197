/* SPDX-License-Identifier: MIT */
/* busy.c: see busy.h.
 *
 * GPU work is a delay kernel of one thread.  Its PTX code can be compiled by every driver from CUDA 11.2 on, for any
 * device.  The kernel reads %globaltimer, which advances in steps of up to a microsecond, until the time is over.  To
 * be sure that it ends, it also stops after four clock cycles for each nanosecond; no device has a clock of 4 GHz.
 *
 * The makespan of an iteration is the time between two events on a separate stream without work.  The first event
 * completes at once, and the second waits for all streams.
 */
#include "cli/replay/busy.h"

#include <stdio.h>
#include <stdlib.h>

enum { MIN_LAUNCH_NS = 10000, MESSAGE_BYTES = 256 };

static const char delay_name[] = "weir_delay";
static const char delay_ptx[] = ".version 7.0\n"
                                ".target sm_52\n"
                                ".address_size 64\n"
                                ".visible .entry weir_delay(.param .u64 delay_ns)\n"
                                "{\n"
                                "    .reg .pred %more;\n"
                                "    .reg .b64 %ns, %cycles, %began, %began_cycle, %passed;\n"
                                "    ld.param.u64 %ns, [delay_ns];\n"
                                "    shl.b64 %cycles, %ns, 2;\n"
                                "    mov.u64 %began, %globaltimer;\n"
                                "    mov.u64 %began_cycle, %clock64;\n"
                                "again:\n"
                                "    mov.u64 %passed, %clock64;\n"
                                "    sub.u64 %passed, %passed, %began_cycle;\n"
                                "    setp.lt.u64 %more, %passed, %cycles;\n"
                                "    @!%more bra done;\n"
                                "    mov.u64 %passed, %globaltimer;\n"
                                "    sub.u64 %passed, %passed, %began;\n"
                                "    setp.lt.u64 %more, %passed, %ns;\n"
                                "    @%more bra again;\n"
                                "done:\n"
                                "    ret;\n"
                                "}\n";

struct busy {
    const struct weir_driver *driver;
    double factor;
    const CUstream *streams;
    size_t stream_count;
    uint64_t *pending_delay_ns; /* the delay to launch on each stream */
    CUmodule module;
    CUfunction delay;
    CUstream makespan_stream;
    CUevent began, ended; /* the start and the end of an iteration, on makespan_stream */
    CUevent reached; /* recorded after the work of a stream; makespan_stream waits for this event */
    char message[MESSAGE_BYTES];
};

const char *busy_lacks(const struct weir_driver *driver) {
    return driver->capabilities & WEIR_CAP_KERNEL
               ? NULL
               : "kernels and times between events (cuModuleLoadData, cuLaunchKernel, "
                 "cuEventElapsedTime)";
}

static int check_busy_call(struct busy *busy, const char *call, CUresult result) {
    if (result != CUDA_SUCCESS)
        snprintf(busy->message, sizeof busy->message, "%s failed: %s", call,
                 weir__driver_error_name(busy->driver, result));
    return result == CUDA_SUCCESS;
}

static int launch_busy_kernel(struct busy *busy, CUstream stream, uint64_t ns) {
    void *parameters[] = {&ns};

    return check_busy_call(
        busy, "cuLaunchKernel",
        busy->driver->cuLaunchKernel(busy->delay, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* Launches the kernel once on each stream, because the first launch is slow: the driver compiles the kernel and
 * allocates memory for it.  Waits for the device. */
static int launch_once_each(struct busy *busy) {
    for (size_t i = 0; i < busy->stream_count; i++)
        if (!launch_busy_kernel(busy, busy->streams[i], 1000))
            return 0;
    return check_busy_call(busy, "cuCtxSynchronize", busy->driver->cuCtxSynchronize());
}

static int load_busy_kernel(struct busy *busy) {
    const struct weir_driver *driver = busy->driver;

    return check_busy_call(busy, "cuModuleLoadData (a delay kernel)",
                           driver->cuModuleLoadData(&busy->module, delay_ptx)) &&
           check_busy_call(busy, "cuModuleGetFunction",
                           driver->cuModuleGetFunction(&busy->delay, busy->module, delay_name)) &&
           check_busy_call(
               busy, "cuStreamCreate",
               driver->cuStreamCreate(&busy->makespan_stream, CU_STREAM_NON_BLOCKING)) &&
           check_busy_call(busy, "cuEventCreate",
                           driver->cuEventCreate(&busy->began, CU_EVENT_DEFAULT)) &&
           check_busy_call(busy, "cuEventCreate",
                           driver->cuEventCreate(&busy->ended, CU_EVENT_DEFAULT)) &&
           check_busy_call(busy, "cuEventCreate",
                           driver->cuEventCreate(&busy->reached, CU_EVENT_DISABLE_TIMING)) &&
           launch_once_each(busy);
}

struct busy *busy_open(const struct weir_driver *driver, double factor, const CUstream *streams,
                       size_t stream_count, char *message, size_t message_bytes) {
    struct busy *busy = calloc(1, sizeof *busy);

    if (!busy)
        goto no_memory;
    busy->driver = driver;
    busy->factor = factor;
    busy->streams = streams;
    busy->stream_count = stream_count;
    busy->pending_delay_ns =
        calloc(stream_count ? stream_count : 1, sizeof *busy->pending_delay_ns);
    if (!busy->pending_delay_ns)
        goto no_memory;
    if (load_busy_kernel(busy))
        return busy;
    snprintf(message, message_bytes, "%s", busy->message);
    busy_close(busy);
    return NULL;

no_memory:
    free(busy);
    snprintf(message, message_bytes, "out of host memory");
    return NULL;
}

void busy_close(struct busy *busy) {
    if (!busy)
        return;
    if (busy->reached)
        busy->driver->cuEventDestroy(busy->reached);
    if (busy->ended)
        busy->driver->cuEventDestroy(busy->ended);
    if (busy->began)
        busy->driver->cuEventDestroy(busy->began);
    if (busy->makespan_stream)
        busy->driver->cuStreamDestroy(busy->makespan_stream);
    if (busy->module)
        busy->driver->cuModuleUnload(busy->module);
    free(busy->pending_delay_ns);
    free(busy);
}

int busy_flush(struct busy *busy, size_t stream) {
    uint64_t ns = busy->pending_delay_ns[stream];

    busy->pending_delay_ns[stream] = 0;
    return ns == 0 || launch_busy_kernel(busy, busy->streams[stream], ns);
}

int busy_add_delay(struct busy *busy, size_t stream, uint64_t gap_us) {
    busy->pending_delay_ns[stream] += (uint64_t)((double)gap_us * 1000 * busy->factor + 0.5);
    return busy->pending_delay_ns[stream] >= MIN_LAUNCH_NS;
}

int busy_begin(struct busy *busy) {
    return check_busy_call(busy, "cuEventRecord",
                           busy->driver->cuEventRecord(busy->began, busy->makespan_stream));
}

int busy_end(struct busy *busy, uint64_t *makespan_ns) {
    const struct weir_driver *driver = busy->driver;
    float ms = 0;

    for (size_t i = 0; i < busy->stream_count; i++)
        if (!busy_flush(busy, i) ||
            !check_busy_call(busy, "cuEventRecord",
                             driver->cuEventRecord(busy->reached, busy->streams[i])) ||
            !check_busy_call(busy, "cuStreamWaitEvent",
                             driver->cuStreamWaitEvent(busy->makespan_stream, busy->reached, 0)))
            return 0;
    if (!check_busy_call(busy, "cuEventRecord",
                         driver->cuEventRecord(busy->ended, busy->makespan_stream)) ||
        !check_busy_call(busy, "cuCtxSynchronize", driver->cuCtxSynchronize()) ||
        !check_busy_call(busy, "cuEventElapsedTime",
                         driver->cuEventElapsedTime(&ms, busy->began, busy->ended)))
        return 0;
    *makespan_ns = (uint64_t)((double)ms * 1e6 + 0.5);
    return 1;
}

const char *busy_message(const struct busy *busy) {
    return busy->message;
}

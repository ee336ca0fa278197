# The library.
#
# lib/libweir-core.la holds the library's code and is never installed: unit tests
# and the weir program link it and see every function.  lib/libweir.la is the same
# code behind the symbol map.
#
# Folders are layers: see lib/LAYERS.
EXTRA_DIST += lib/LAYERS \
	lib/README \
	lib/adapters/interpose/README \
	lib/adapters/plugins/README \
	lib/adapters/preload/README \
	lib/adapters/record/README \
	lib/adapters/torch/README \
	lib/api/README \
	lib/base/README \
	lib/cache/README \
	lib/config/README \
	lib/driver/README \
	lib/driver/model/README \
	lib/engine/README \
	lib/harden/README \
	lib/ipc/README \
	lib/placement/README \
	lib/reserve/README \
	lib/tensors/README

noinst_LTLIBRARIES += lib/libweir-core.la
lib_libweir_core_la_SOURCES = \
	lib/base/assert.h \
	lib/base/clock.h \
	lib/base/counters.c \
	lib/base/counters.h \
	lib/base/file.c \
	lib/base/file.h \
	lib/base/futex.h \
	lib/base/histogram.c \
	lib/base/histogram.h \
	lib/base/hostmem.h \
	lib/base/kept.c \
	lib/base/kept.h \
	lib/base/lock.c \
	lib/base/lock.h \
	lib/base/log.c \
	lib/base/log.h \
	lib/base/map.c \
	lib/base/map.h \
	lib/base/output.c \
	lib/base/output.h \
	lib/base/replace.c \
	lib/base/replace.h \
	lib/base/result.c \
	lib/base/result.h \
	lib/base/runfile.c \
	lib/base/runfile.h \
	lib/base/bounds.h \
	lib/base/size.h \
	lib/base/slow_path.h \
	lib/base/text.c \
	lib/base/text.h \
	lib/base/thread.c \
	lib/base/thread.h \
	lib/base/tls.h \
	lib/base/variable.c \
	lib/base/variable.h \
	lib/base/who.c \
	lib/base/who.h \
	lib/driver/cuda_abi.h \
	lib/driver/cuda_constants.h \
	lib/driver/device.c \
	lib/driver/device.h \
	lib/driver/device_wait.c \
	lib/driver/driver.c \
	lib/driver/driver.h \
	lib/driver/driver_cuda.c \
	lib/driver/model/model.c \
	lib/driver/model/model.h \
	lib/driver/model/model_capture.c \
	lib/driver/model/model_device.c \
	lib/driver/model/model_graph.c \
	lib/driver/model/model_inside.h \
	lib/driver/model/model_ipc.c \
	lib/driver/model/model_memory.c \
	lib/driver/model/model_oracle.c \
	lib/driver/model/model_orders.c \
	lib/driver/model/model_pool.c \
	lib/driver/model/model_pool.h \
	lib/driver/model/model_pool_alloc.c \
	lib/driver/model/model_profile.c \
	lib/driver/model/model_profile.h \
	lib/driver/model/model_program.c \
	lib/driver/model/model_program.h \
	lib/driver/model/model_sequence.c \
	lib/driver/model/model_shared.c \
	lib/driver/model/model_shared.h \
	lib/driver/model/model_span.c \
	lib/driver/model/model_span.h \
	lib/driver/model/model_stream.c \
	lib/driver/model/model_tree.c \
	lib/driver/model/model_virtual.c \
	lib/config/amount.c \
	lib/config/amount.h \
	lib/config/environment.c \
	lib/config/growth_policy.c \
	lib/config/growth_policy.h \
	lib/config/option_kinds.c \
	lib/config/option_kinds.h \
	lib/config/option_table.c \
	lib/config/settings.c \
	lib/config/settings.h \
	lib/ipc/group.c \
	lib/ipc/group.h \
	lib/ipc/group_driver.c \
	lib/ipc/group_process.c \
	lib/ipc/group_process.h \
	lib/ipc/registry.c \
	lib/ipc/registry.h \
	lib/ipc/slot_file.c \
	lib/ipc/slot_file.h \
	lib/ipc/local_peers.c \
	lib/ipc/local_peers.h \
	lib/ipc/process_peers.c \
	lib/ipc/process_peers.h \
	lib/ipc/memory_text.c \
	lib/ipc/memory_text.h \
	lib/ipc/process_lock.c \
	lib/ipc/process_lock.h \
	lib/placement/placement.c \
	lib/placement/placement.h \
	lib/placement/placement_state.h \
	lib/engine/bfc.c \
	lib/engine/direct.c \
	lib/engine/driver_blocks.c \
	lib/engine/driver_blocks.h \
	lib/engine/engine.c \
	lib/engine/engine.h \
	lib/engine/heap.c \
	lib/engine/heap.h \
	lib/engine/mapped.c \
	lib/engine/mapped.h \
	lib/engine/mapped_plan.c \
	lib/engine/peer_access.c \
	lib/engine/peer_access.h \
	lib/engine/pool.c \
	lib/engine/stream_order.c \
	lib/engine/stream_order.h \
	lib/engine/stream_uses.c \
	lib/engine/stream_uses.h \
	lib/engine/superblocks.c \
	lib/engine/superblocks.h \
	lib/reserve/goal.c \
	lib/reserve/goal.h \
	lib/reserve/limit.c \
	lib/reserve/limit.h \
	lib/reserve/oom_recovery.c \
	lib/reserve/profile.c \
	lib/reserve/profile.h \
	lib/reserve/reserve.c \
	lib/reserve/reserve.h \
	lib/cache/biased_lock.c \
	lib/cache/biased_lock.h \
	lib/cache/cache_requests.c \
	lib/cache/caches.c \
	lib/cache/caches.h \
	lib/cache/page_map.c \
	lib/cache/page_map.h \
	lib/cache/stream_cache.h \
	lib/harden/guard.c \
	lib/harden/guard.h \
	lib/api/allocator_internal.h \
	lib/api/create.c \
	lib/api/create.h \
	lib/api/drop_in.c \
	lib/api/drop_in.h \
	lib/api/figures.c \
	lib/api/handle.c \
	lib/api/apply_settings.c \
	lib/api/ipc.c \
	lib/api/lend.c \
	lib/api/multi_device.c \
	lib/api/oom_reporting.c \
	lib/api/oom_reporting.h \
	lib/api/oom_report_text.c \
	lib/api/process.c \
	lib/api/profile_use.c \
	lib/api/profile_use.h \
	lib/api/request.c \
	lib/api/resize.c \
	lib/api/streamless.c \
	lib/api/trace_read.c \
	lib/tensors/checkpoint.c \
	lib/tensors/figures.c \
	lib/tensors/pending.c \
	lib/tensors/pools.c \
	lib/tensors/tensor_blocks.c \
	lib/tensors/tensors_internal.h
lib_libweir_core_la_LIBADD = $(WEIR_LIBS)
# The asserts check placements by a file that tests use, too.
EXTRA_LTLIBRARIES += tests/fixtures/libplacement-check.la
tests_fixtures_libplacement_check_la_SOURCES = tests/fixtures/placement_check.c
if WEIR_ASSERTS
lib_libweir_core_la_LIBADD += tests/fixtures/libplacement-check.la
endif

# What processes show of their allocators, and what happened when: for the program and the preload, not for the library.
noinst_LTLIBRARIES += lib/libweir-shown.la
lib_libweir_shown_la_SOURCES = \
	lib/ipc/segment.c \
	lib/ipc/segment.h \
	lib/api/show.c \
	lib/api/show.h \
	lib/api/timeline.c \
	lib/api/timeline.h \
	lib/adapters/torch/shim.c \
	lib/adapters/torch/shim.h

# What is compiled where PyTorch is, at the first need (`weir torch').  The sources' sum is part of a shim's name.
torchshimdir = $(pkgdatadir)/torch
torch_shim = \
	lib/adapters/torch/check_model.h \
	lib/adapters/torch/errors.h \
	lib/adapters/torch/history.h \
	lib/adapters/torch/interface.txt \
	lib/adapters/torch/sharing.h \
	lib/adapters/torch/snapshot.h \
	lib/adapters/torch/versions.h \
	lib/adapters/torch/weir_torch.cpp \
	lib/adapters/torch/weir_torch_build.py \
	lib/adapters/torch/weir_torch_check.cpp \
	lib/adapters/torch/weir_torch_interface.py
EXTRA_DIST += $(torch_shim)
BUILT_SOURCES += lib/adapters/torch/shim_hash.h
CLEANFILES += lib/adapters/torch/shim_hash.h
lib/adapters/torch/shim_hash.h: $(torch_shim) $(weirinclude_HEADERS)
	$(AM_V_GEN)$(MKDIR_P) lib/adapters/torch && \
	(cd $(srcdir) && cat $(torch_shim) $(weirinclude_HEADERS)) | cksum | \
	$(AWK) '{ printf "/* Made by the build. */\n#define WEIR_SHIM_HASH \"%08x%x\"\n", $$1, $$2 }' >$@.new && mv $@.new $@
# Also where a program is built alone, without `make all'.
lib/adapters/torch/shim.lo: lib/adapters/torch/shim_hash.h

lib_LTLIBRARIES += lib/libweir.la
lib_libweir_la_SOURCES =
lib_libweir_la_LIBADD = lib/libweir-core.la

# The version of the binary interface, CURRENT:REVISION:AGE.  It is not the
# version of the release.  At each release that changed the library, in this
# order:
#   1. anything changed since the last release:    REVISION + 1
#   2. functions added, removed or changed:        CURRENT + 1, REVISION = 0
#   3. functions only added, none changed:         AGE + 1
#   4. functions removed or changed:               AGE = 0
# New functions also enter lib/libweir.map, in a new node once 1.0 is out.  Until then its one node is WEIR_N, where N is
# the number of the soname, so that a process can have two versions of the library.
#
#   release   version-info   why
#   0.1.0     0:0:0          first release
#   0.2.0     1:0:0          functions, constants and fields of structs are gone or have other names
# Its threads, and what it does at the end, may outlast a dlclose.
lib_libweir_la_LDFLAGS = -version-info 1:0:0 -no-undefined -Wl,-z,nodelete
EXTRA_lib_libweir_la_DEPENDENCIES =
if HAVE_VERSION_SCRIPT
# packaging/wheel/weir_wheel.py names another file.
libweir_map = $(top_srcdir)/lib/libweir.map
lib_libweir_la_LDFLAGS += -Wl,--version-script=$(libweir_map)
EXTRA_lib_libweir_la_DEPENDENCIES += $(libweir_map)
else
lib_libweir_la_LDFLAGS += -export-symbols-regex '^weir_[a-z0-9]'
endif
EXTRA_DIST += lib/libweir.map

# The profile of the modelled device is compiled in: each line of the text
# becomes a line of a C string.
EXTRA_DIST += lib/driver/model/h200.profile
BUILT_SOURCES += lib/driver/model/h200_profile.h
CLEANFILES += lib/driver/model/h200_profile.h
lib/driver/model/h200_profile.h: lib/driver/model/h200.profile
	$(AM_V_GEN)$(MKDIR_P) lib/driver/model && \
	{ echo '/* Made from h200.profile by the build. */' && \
	  echo 'static const char weir__h200_profile[] =' && \
	  $(SED) -e 's/[\\"]/\\&/g' -e 's/^/    "/' -e 's/$$/\\n"/' $(top_srcdir)/lib/driver/model/h200.profile && \
	  echo '    "";'; } >$@.new && mv $@.new $@
# Also where a program is built alone, without `make all'.
lib/driver/model/model_profile.lo: lib/driver/model/h200_profile.h

# What programs that know nothing of weir are started with (`weir run'): see doc/design.md, Frameworks.  It is
# loaded with the program and never linked to, so it stands beside the libraries, not among them.
if WEIR_PRELOAD
pkglib_LTLIBRARIES += lib/libweir-preload.la
torchshim_DATA = $(torch_shim)
# With them the headers that they include, which may not be installed.
torchshimheadersdir = $(torchshimdir)/weir
torchshimheaders_DATA = $(weirinclude_HEADERS)
endif
lib_libweir_preload_la_SOURCES = \
	lib/adapters/interpose/interpose.c \
	lib/adapters/interpose/interpose.h \
	lib/adapters/preload/preload.h \
	lib/adapters/interpose/both_calls.h \
	lib/adapters/preload/preload_blocks.c \
	lib/adapters/preload/preload_calls.h \
	lib/adapters/preload/preload_check.c \
	lib/adapters/preload/preload_contexts.c \
	lib/adapters/preload/preload_ends.c \
	lib/adapters/preload/preload_frees.c \
	lib/adapters/preload/preload_plain.c \
	lib/adapters/preload/preload_pointers.c \
	lib/adapters/preload/preload_pool_calls.c \
	lib/adapters/preload/preload_pools.c \
	lib/adapters/preload/preload_report.c \
	lib/adapters/preload/preload_requests.c \
	lib/adapters/preload/preload_show.c \
	lib/adapters/preload/preload_streams.c \
	lib/adapters/preload/preload_torch.c \
	lib/adapters/preload/preload_trace.c
lib_libweir_preload_la_CPPFLAGS = $(AM_CPPFLAGS) -DWEIR_INTERPOSED='"adapters/preload/preload_calls.h"'
lib_libweir_preload_la_LIBADD = lib/libweir-shown.la lib/libweir-core.la
lib_libweir_preload_la_LDFLAGS = -module -avoid-version -shared -no-undefined -Wl,-z,nodelete \
	-Wl,--version-script=$(top_srcdir)/lib/libweir-preload.map
EXTRA_lib_libweir_preload_la_DEPENDENCIES = lib/libweir-preload.map
EXTRA_DIST += lib/libweir-preload.map

# What records a program's requests for `weir record', in the same way of a program.
if WEIR_PRELOAD
pkglib_LTLIBRARIES += lib/libweir-record.la
endif
lib_libweir_record_la_SOURCES = \
	lib/adapters/interpose/interpose.c \
	lib/adapters/interpose/interpose.h \
	lib/adapters/record/record.c \
	lib/adapters/record/record.h \
	lib/adapters/interpose/both_calls.h \
	lib/adapters/record/record_callers.c \
	lib/adapters/record/record_calls.h \
	lib/adapters/record/record_files.c \
	lib/adapters/record/nvtx_abi.h \
	lib/adapters/record/record_nvtx.c \
	lib/adapters/record/record_ring.h \
	lib/base/file.c \
	lib/base/file.h \
	lib/base/map.c \
	lib/base/map.h \
	lib/base/variable.c \
	lib/base/variable.h \
	lib/base/who.c \
	lib/base/who.h
lib_libweir_record_la_CPPFLAGS = $(AM_CPPFLAGS) -DWEIR_INTERPOSED='"adapters/record/record_calls.h"'
lib_libweir_record_la_LIBADD = $(WEIR_LIBS)
lib_libweir_record_la_LDFLAGS = -module -avoid-version -shared -no-undefined \
	-Wl,--version-script=$(top_srcdir)/lib/libweir-record.map
EXTRA_lib_libweir_record_la_DEPENDENCIES = lib/libweir-record.map
EXTRA_DIST += lib/libweir-record.map

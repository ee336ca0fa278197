# The test suites.  Each is a program (or script) of its own that writes TAP.
#
# A unit test, tests/LAYER/test_NAME.c, links lib/libweir-core.la and may call internal
# functions.  An integration test, tests/LAYER/test_public_NAME.c, links the shared
# lib/libweir.la and sees what a user sees.  A suite that needs a GPU prints
# "1..0 # SKIP no CUDA device" and exits with 77 where there is none.

LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run-tap
AM_TESTS_ENVIRONMENT = \
	CK_TAP_LOG_FILE_NAME=-; CK_VERBOSITY=silent; \
	export CK_TAP_LOG_FILE_NAME CK_VERBOSITY; \
	top_srcdir='$(top_srcdir)'; top_builddir='$(top_builddir)'; \
	CC='$(CC)'; CXX='$(CXX)'; CPPFLAGS='$(CPPFLAGS)'; NM='$(NM)'; \
	SANITIZE_CFLAGS='$(WEIR_SANITIZE_CFLAGS)'; \
	CUDA_CPPFLAGS='$(CUDA_CPPFLAGS)'; HAVE_ZSTD='$(enable_zstd)'; HAVE_CUDA_H='$(have_cuda_h)'; NVCC='$(NVCC)'; \
	export top_srcdir top_builddir CC CXX CPPFLAGS NM SANITIZE_CFLAGS CUDA_CPPFLAGS HAVE_ZSTD HAVE_CUDA_H NVCC;

if HAVE_CUDA_H
have_cuda_h = yes
else
have_cuda_h = no
endif

# What `make check' needs CHECK_CFLAGS for is a directory of headers at most, so
# every target may have it, and a test needs no flags of its own.
AM_CPPFLAGS += $(CHECK_CFLAGS)

# One name a line.  The source of tests/LAYER/test_NAME is tests/LAYER/test_NAME.c unless
# tests_LAYER_test_NAME_SOURCES says otherwise.  What takes longest comes first, here and among the scripts, so that the
# processors end together.
unit_tests = \
	tests/whole/conformance \
	tests/whole/test_faults \
	tests/whole/test_service \
	tests/whole/test_worlds \
	tests/api/test_abi \
	tests/adapters/test_adapters \
	tests/reserve/test_ahead \
	tests/reserve/test_ahead_played \
	tests/api/test_anywhere \
	tests/ipc/test_asking \
	tests/placement/test_bestfit \
	tests/cache/test_bias \
	tests/config/test_budget \
	tests/reserve/test_decay \
	tests/driver/test_driver \
	tests/api/test_drop_in \
	tests/tensors/test_tensors \
	tests/tensors/test_failures \
	tests/tensors/test_oom \
	tests/tensors/test_tensor_order \
	tests/tensors/test_pools \
	tests/tensors/test_soak \
	tests/tensors/test_streams \
	tests/engine/test_engine \
	tests/engine/test_engines \
	tests/engine/test_drivers \
	tests/engine/test_growing \
	tests/engine/test_many_streams \
	tests/engine/test_mapping \
	tests/engine/test_random_order \
	tests/engine/test_recovery \
	tests/cache/test_caches \
	tests/cache/test_cache_order \
	tests/cache/test_cache_soak \
	tests/cache/test_cache_threads \
	tests/cache/test_host_memory \
	tests/cache/test_kept \
	tests/config/test_growth \
	tests/harden/test_harden \
	tests/base/test_histogram \
	tests/reserve/test_oom_recovery \
	tests/reserve/test_limit \
	tests/reserve/test_low_memory \
	tests/reserve/test_threshold \
	tests/api/test_ipc \
	tests/api/test_ipc_refused \
	tests/ipc/test_group \
	tests/ipc/test_registry \
	tests/base/test_map \
	tests/base/test_output \
	tests/engine/test_mapped \
	tests/api/test_misuse \
	tests/driver/test_model \
	tests/driver/test_model_costs \
	tests/driver/test_model_reuse \
	tests/driver/test_model_units \
	tests/driver/test_model_graph \
	tests/driver/test_model_graph_capture \
	tests/driver/test_model_program \
	tests/driver/test_model_shared \
	tests/driver/test_model_virtual \
	tests/driver/test_model_virtual_mappings \
	tests/driver/test_model_virtual_oracle \
	tests/engine/test_moves \
	tests/config/test_options \
	tests/config/test_option_texts \
	tests/config/test_option_structs \
	tests/config/test_compatibility \
	tests/ipc/test_process_peers \
	tests/driver/test_oracle \
	tests/engine/test_order \
	tests/cache/test_pagemap \
	tests/cache/test_pinned \
	tests/engine/test_peers \
	tests/placement/test_placement \
	tests/placement/test_tags \
	tests/placement/test_placement_model \
	tests/placement/test_placement_memory \
	tests/reserve/test_preallocation \
	tests/reserve/test_prealloc_processes \
	tests/api/test_process \
	tests/reserve/test_profile \
	tests/reserve/test_profile_files \
	tests/base/test_replace \
	tests/cache/test_revocation \
	tests/ipc/test_segment \
	tests/driver/test_sequence \
	tests/cache/test_span \
	tests/api/test_stats \
	tests/base/test_status \
	tests/base/test_file \
	tests/base/test_system \
	tests/api/test_timeline \
	tests/api/test_trace \
	tests/api/test_oom_report \
	tests/engine/test_waits

tests_whole_conformance_SOURCES = tests/whole/conformance.c tests/whole/conformance_allocator.h \
	tests/whole/conformance_capture.c tests/whole/conformance_handles.c tests/whole/conformance_limits.c \
	tests/whole/conformance_reserve.c tests/whole/conformance_work.c tests/whole/conformance_driver.c \
	tests/whole/conformance_driver.h tests/whole/conformance_driver_reuse.c \
	tests/whole/conformance_peers.c tests/whole/conformance_shared.c \
	tests/whole/conformance.h

tests_whole_test_faults_SOURCES = tests/whole/test_faults.c tests/whole/test_faults_scenes.h

# The parts of a suite that has several are named after it, so that tests/tree/check-mutants finds them.
tests_api_test_oom_report_SOURCES = tests/api/test_oom_report.c tests/api/test_oom_report.h tests/api/test_oom_report_idle.c \
	tests/api/test_oom_report_limits.c tests/api/test_oom_report_others.c tests/api/test_oom_report_words.c

tests_driver_test_model_SOURCES = tests/driver/test_model.c tests/driver/test_model.h
tests_driver_test_model_costs_SOURCES = tests/driver/test_model_costs.c tests/driver/test_model.h
tests_driver_test_model_reuse_SOURCES = tests/driver/test_model_reuse.c tests/driver/test_model.h
tests_driver_test_model_units_SOURCES = tests/driver/test_model_units.c tests/driver/test_model.h

tests_driver_test_model_virtual_SOURCES = tests/driver/test_model_virtual.c tests/driver/test_model_virtual.h
tests_driver_test_model_virtual_mappings_SOURCES = tests/driver/test_model_virtual_mappings.c tests/driver/test_model_virtual.h
tests_driver_test_model_virtual_oracle_SOURCES = tests/driver/test_model_virtual_oracle.c tests/driver/test_model_virtual.h

tests_driver_test_model_graph_SOURCES = tests/driver/test_model_graph.c tests/driver/test_model_graph.h
tests_driver_test_model_graph_capture_SOURCES = tests/driver/test_model_graph_capture.c tests/driver/test_model_graph.h

tests_ipc_test_registry_SOURCES = tests/ipc/test_registry.c tests/ipc/test_registry.h \
	tests/ipc/test_registry_bad.c \
	tests/ipc/test_registry_going.c

tests_ipc_test_process_peers_SOURCES = tests/ipc/test_process_peers.c tests/ipc/test_process_peers.h \
	tests/ipc/test_process_peers_contexts.c \
	tests/ipc/test_process_peers_giving.c \
	tests/ipc/test_process_peers_shares.c \
	tests/ipc/test_process_peers_silent.c

tests_ipc_test_segment_SOURCES = tests/ipc/test_segment.c tests/ipc/test_segment.h \
	tests/ipc/test_segment_lives.c

# The invariants of a placement.
placement_check = tests/fixtures/libplacement-check.la $(LDADD)
tests_placement_test_bestfit_LDADD = $(placement_check)
tests_placement_test_placement_model_LDADD = $(placement_check)
tests_placement_test_placement_memory_LDADD = $(placement_check)
tests_placement_test_tags_LDADD = $(placement_check)
tests_placement_test_placement_LDADD = $(placement_check)
tests_whole_test_asserts_SOURCES = tests/whole/test_asserts.c tests/whole/test_asserts.h \
	tests/whole/test_asserts_placement.c
tests_whole_test_worlds_LDADD = $(placement_check)
tests_whole_test_worlds_SOURCES = tests/whole/test_worlds.c tests/whole/test_worlds.h \
	tests/whole/test_worlds_placements.c

tests_api_test_misuse_SOURCES = tests/api/test_misuse.c tests/api/test_misuse.h \
	tests/api/test_misuse_ends.c

tests_adapters_test_adapters_LDADD = lib/adapters/libadapters.la $(LDADD)

if WEIR_ASSERTS
unit_tests += tests/whole/test_asserts
endif

# Parts of the weir program that need nothing else of it.
if WEIR_PROGRAM
unit_tests += tests/cli/test_result tests/cli/test_top
endif
tests_cli_test_result_SOURCES = tests/cli/test_result.c cli/common/files.c cli/common/files.h \
	cli/common/jsonfile.c cli/common/jsonfile.h cli/replay/findings.c cli/replay/findings.h \
	cli/replay/result.c cli/replay/result.h cli/common/spell.c cli/common/spell.h
tests_cli_test_result_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tests_cli_test_result_LDADD = $(LDADD) $(JANSSON_LIBS) -lm
tests_cli_test_top_SOURCES = tests/cli/test_top.c cli/holders.c cli/holders.h cli/common/files.c cli/common/files.h \
	cli/common/jsonfile.c cli/common/jsonfile.h cli/top_view.c cli/top_view.h cli/common/spell.c cli/common/spell.h
tests_cli_test_top_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tests_cli_test_top_LDADD = $(LDADD) $(JANSSON_LIBS)

public_tests = \
	tests/api/test_process_group \
	tests/api/test_public_api \
	tests/api/test_public_library \
	tests/api/test_public_unload
tests_api_test_process_group_LDADD = $(public_ldadd)
tests_api_test_public_api_LDADD = $(public_ldadd)
tests_api_test_public_library_LDADD = $(public_ldadd)
tests_api_test_public_unload_LDADD =
EXTRA_tests_api_test_public_unload_DEPENDENCIES = lib/libweir.la

# These compile against the headers of the CUDA toolkit, and need no more of it.
cuda_tests = \
	tests/driver/abi_check \
	tests/adapters/nvtx_abi_check \
	tests/api/test_cuda_header \
	tests/api/test_cuda_header_override \
	tests/api/test_cuda_header_ptds
tests_driver_abi_check_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
tests_driver_abi_check_LDADD =
tests_adapters_nvtx_abi_check_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
tests_adapters_nvtx_abi_check_LDADD =
tests_api_test_cuda_header_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
tests_api_test_cuda_header_LDADD = $(CHECK_LIBS)
tests_api_test_cuda_header_override_SOURCES = tests/api/test_cuda_header.c
tests_api_test_cuda_header_override_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) -DWEIR_OVERRIDE
tests_api_test_cuda_header_override_LDADD = $(CHECK_LIBS)
tests_api_test_cuda_header_ptds_SOURCES = tests/api/test_cuda_header.c
tests_api_test_cuda_header_ptds_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) \
	-DCUDA_API_PER_THREAD_DEFAULT_STREAM
tests_api_test_cuda_header_ptds_LDADD = $(CHECK_LIBS)

# Three stand-ins for the CUDA driver, which test_driver loads in turn; see
# tests/driver/fake_libcuda.c.  The -rpath is never used: it makes libtool build a
# shared library.  Its version makes the file libcuda.so.1.
fake_drivers = \
	tests/fake/resolver-0/libcuda.la \
	tests/fake/resolver-1/libcuda.la \
	tests/fake/resolver-2/libcuda.la
fake_ldflags = -rpath /nowhere -version-info 1:0:0
tests_fake_resolver_0_libcuda_la_SOURCES = tests/driver/fake_libcuda.c
tests_fake_resolver_0_libcuda_la_CPPFLAGS = $(AM_CPPFLAGS) -DFAKE_RESOLVER=0
tests_fake_resolver_0_libcuda_la_LDFLAGS = $(fake_ldflags)
tests_fake_resolver_1_libcuda_la_SOURCES = tests/driver/fake_libcuda.c
tests_fake_resolver_1_libcuda_la_CPPFLAGS = $(AM_CPPFLAGS) -DFAKE_RESOLVER=1
tests_fake_resolver_1_libcuda_la_LDFLAGS = $(fake_ldflags)
tests_fake_resolver_2_libcuda_la_SOURCES = tests/driver/fake_libcuda.c
tests_fake_resolver_2_libcuda_la_CPPFLAGS = $(AM_CPPFLAGS) -DFAKE_RESOLVER=2
tests_fake_resolver_2_libcuda_la_LDFLAGS = $(fake_ldflags)

# A driver whose device is the device model, for programs that know nothing of weir; see
# tests/libcuda/libcuda.c.  As NVIDIA's, it stays loaded once it is, and answers with its own functions whatever was loaded before.
model_driver = tests/libcuda/libcuda.la
tests_libcuda_libcuda_la_SOURCES = tests/libcuda/libcuda.c
tests_libcuda_libcuda_la_LIBADD = lib/libweir-core.la
tests_libcuda_libcuda_la_LDFLAGS = $(fake_ldflags) -export-symbols-regex '^cu[A-Z]' -Wl,-z,nodelete \
	-Wl,-Bsymbolic-functions

# Such programs, which tests/adapters/check-drop-in runs: what they print is the same whoever serves them.
victims = tests/victims/asks tests/victims/captures tests/victims/closes tests/victims/decompresses tests/victims/early \
	tests/victims/ends tests/victims/fails tests/victims/fills tests/victims/forks tests/victims/gone \
	tests/victims/hangs tests/victims/kinds tests/victims/lacks tests/victims/left tests/victims/linked \
	tests/victims/member tests/victims/older tests/victims/outlives tests/victims/peak tests/victims/plain \
	tests/victims/pools tests/victims/preallocates tests/victims/ranges tests/victims/records tests/victims/resets \
	tests/victims/resolved tests/victims/reuses tests/victims/rules tests/victims/sized tests/victims/stays \
	tests/victims/suffixed tests/victims/tensors tests/victims/threads tests/victims/trims
.PHONY: victims
victims: $(victims)
victim_work = tests/victims/libwork.la
tests_victims_libwork_la_SOURCES = tests/victims/work.c tests/victims/work.h tests/victims/opened.h
# They link what they share, and not what a unit test links.
$(victims): LDADD = $(victim_work)
$(victims): $(victim_work)
tests_victims_linked_LDADD = $(victim_work) -Ltests/libcuda/.libs -l:libcuda.so.1
EXTRA_tests_victims_linked_DEPENDENCIES = $(model_driver)

# Programs without an LDADD of their own are unit tests.
LDADD = lib/libweir-shown.la lib/libweir-core.la $(CHECK_LIBS)
public_ldadd = lib/libweir.la $(CHECK_LIBS) $(WEIR_LIBS)

script_tests = \
	tests/tree/check-apart \
	tests/spin/check-models \
	tests/cli/check-paths \
	tests/cli/check-program \
	tests/cli/check-bench \
	tests/bench/check-measure \
	tests/bench/check-micro \
	tests/bench/check-smallest-limit \
	tests/adapters/check-drop-in \
	tests/adapters/check-group \
	tests/adapters/check-preload \
	tests/adapters/check-preload-says \
	tests/cli/check-top \
	tests/cli/check-torch \
	tests/cli/check-tune \
	tests/cli/check-shim \
	tests/adapters/check-adapters \
	tests/whole/check-examples \
	tests/whole/check-notebook \
	tests/tree/check-contact \
	tests/tree/check-exports \
	tests/tree/check-figures \
	tests/tree/check-headers \
	tests/cli/check-exit-codes \
	tests/cli/check-info \
	tests/tree/check-layers \
	tests/tree/check-names \
	tests/tree/check-links \
	tests/tree/check-readme \
	tests/cli/check-manual \
	tests/cli/check-record \
	tests/cli/check-record-processes \
	tests/cli/check-page \
	tests/cli/check-report \
	tests/cli/check-reserves \
	tests/tree/check-sequence \
	tests/cli/check-traces \
	tests/cli/check-run \
	tests/adapters/check-packages \
	tests/adapters/check-python \
	tests/cli/check-processes \
	tests/cli/check-trace-events \
	tests/tree/check-variables \
	tests/whole/conformance-cuda
dist_check_SCRIPTS = $(script_tests)
EXTRA_DIST += \
	tests/fixtures \
	tests/outside \
	tests/spin \
	tests/adapters/torch_shim.cpp \
	tests/adapters/adapters_throw.cc \
	tests/gpu \
	tests/elsewhere \
	tests/tree \
	tests/torch \
	tests/run-tap

# Folders go into the tarball whole, but without what was built in them.
dist-hook:
	find $(distdir)/tests -name .deps -o -name .dirstamp -o -name .libs -o -name '*.l[ao]' -o -name '*.o' -o \
	    -name '*.log' -o -name '*.trs' | xargs rm -rf

# Worlds that a seed decides, checked by the model's oracle; in `make check' for a while, by `make soak'
# for as long as SOAK_SECONDS says.
tests_whole_sim_SOURCES = tests/whole/sim.c tests/whole/sim.h tests/whole/sim_world.c tests/whole/sim_world.h \
	tests/whole/sim_settings.c tests/whole/sim_operations.c
tests_whole_sim_LDADD = lib/libweir-core.la
SOAK_SECONDS = 600
.PHONY: soak
soak: tests/whole/sim
	tests/whole/sim --seconds $(SOAK_SECONDS) --seed $$(date +%s)

# The like until a number of operations, for a change that decides who may have a block when.
SOAK_OPERATIONS = 100000000
.PHONY: soak-operations
soak-operations: tests/whole/sim
	tests/whole/sim --total $(SOAK_OPERATIONS) --seed $$(date +%s)

# That weir calls the driver as another revision does, HEAD~1 or REV: for changes that only move or rename.  Minutes.
SEEDS = 100000
.PHONY: check-same same-digest same-calls
same-digest: weir tests/whole/sim
	@for part in $(SAME_PARTS); do \
	    SEEDS='$(SEEDS)' TRACES='$(TRACES)' $(SHELL) $(top_srcdir)/tests/tree/same-digest $$part || exit; \
	done
same-calls: weir tests/whole/sim
	@TRACES='$(TRACES)' $(SHELL) $(top_srcdir)/tests/tree/same-digest calls $(SAME_NAME)
SAME_PARTS = traces seeds
check-same:
	+@top_srcdir='$(top_srcdir)' REV='$(REV)' SEEDS='$(SEEDS)' TRACES='$(TRACES)' MAKE='$(MAKE)' \
	$(SHELL) $(top_srcdir)/tests/tree/check-same

# Processes on one device that are killed, stopped and started, likewise.
.PHONY: soak-processes
soak-processes: tests/ipc/test_process_peers
	WEIR_TEST_SECONDS=$(SOAK_SECONDS) CK_RUN_CASE=many TEST_TIMEOUT=86400 \
	$(SHELL) $(top_srcdir)/tests/run-tap env CK_RUN_CASE=many CK_VERBOSITY=normal tests/ipc/test_process_peers

# Members of a process group that are killed and stopped at any moment: over-run must be 0 bytes.
GROUP_STEPS = 1000000
.PHONY: soak-group
soak-group: tests/ipc/test_group
	WEIR_TEST_STEPS=$(GROUP_STEPS) CK_RUN_CASE=many TEST_TIMEOUT=86400 \
	$(SHELL) $(top_srcdir)/tests/run-tap env CK_RUN_CASE=many CK_VERBOSITY=normal tests/ipc/test_group

# That it finds the mistakes that tests/tree/mutants lists.
.PHONY: check-mutants
check-mutants: tests/whole/sim $(MUTANT_SUITES)
	+@list='$(MUTANTS)'; $(MAKE) $(AM_MAKEFLAGS) -s tests/whole/sim \
	    $$(sed -n 's/^# suites: //p' "$${list:-$(top_srcdir)/tests/tree/mutants}" | tr ' ' '\n' | sort -u)
	@top_srcdir='$(top_srcdir)' top_builddir=. CC='$(CC)' CFLAGS='$(CFLAGS)' \
	LIBS='$(CHECK_LIBS) $(LIBS)' MUTANTS='$(MUTANTS)' MUTANT_SUITES='$(MUTANT_SUITES)' \
	CPPFLAGS='$(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS)' \
	MUTANT_SECONDS='$(MUTANT_SECONDS)' MUTANT_LEAST='$(MUTANT_LEAST)' MUTANT_JOBS='$(MUTANT_JOBS)' \
	$(SHELL) $(top_srcdir)/tests/tree/check-mutants

# That a test case of each row of doc/reuse.md finds the row's planted mistake.
CLEANFILES += order.mutants
.PHONY: check-order
check-order:
	$(top_srcdir)/tests/tree/order-mutants >order.mutants
	+@$(MAKE) $(AM_MAKEFLAGS) -s check-mutants MUTANTS=order.mutants MUTANT_SECONDS=0

# And that of mistakes made by rule in these files, each GENERATED_EVERYth, the suites or it find 95 of 100: an
# hour or two for all.
GENERATED_FILES = lib/reserve/oom_recovery.c lib/engine/heap.c lib/engine/mapped.c lib/engine/mapped_plan.c \
	lib/engine/bfc.c \
	lib/cache/cache_requests.c lib/cache/caches.c \
	lib/tensors/pending.c
GENERATED_EVERY = 1
generated_suites = tests/api/test_stats tests/engine/test_engines tests/engine/test_growing tests/engine/test_recovery \
	tests/engine/test_mapping tests/engine/test_drivers tests/engine/test_random_order tests/cache/test_caches \
	tests/cache/test_cache_order tests/cache/test_kept tests/cache/test_pinned tests/cache/test_cache_threads \
	tests/cache/test_host_memory tests/cache/test_cache_soak tests/engine/test_order \
	tests/engine/test_mapped tests/engine/test_moves tests/engine/test_peers \
	tests/reserve/test_ahead tests/reserve/test_ahead_played tests/api/test_misuse \
	tests/api/test_drop_in tests/reserve/test_oom_recovery tests/reserve/test_limit tests/reserve/test_low_memory \
	tests/reserve/test_preallocation tests/reserve/test_prealloc_processes \
	tests/api/test_oom_report tests/tensors/test_tensors tests/tensors/test_tensor_order tests/tensors/test_pools \
	tests/tensors/test_streams tests/tensors/test_oom tests/tensors/test_failures \
	tests/ipc/test_process_peers tests/whole/test_faults tests/whole/conformance tests/whole/test_worlds
CLEANFILES += generated.mutants
.PHONY: check-generated
check-generated:
	+@bad=0; for file in $(GENERATED_FILES); do \
	    (cd '$(top_srcdir)' && $(SHELL) tests/tree/generate-mutants --every $(GENERATED_EVERY) $$file) \
	        >generated.mutants || exit 1; \
	    $(MAKE) $(AM_MAKEFLAGS) -s check-mutants MUTANTS=generated.mutants MUTANT_LEAST=95 \
	        MUTANT_SECONDS=5 MUTANT_SUITES='$(generated_suites)' || bad=1; \
	done; exit $$bad

# For a machine with a GPU (tests/gpu/bundle).
developer_programs += tests/whole/lifetimes tests/whole/peers
tests_whole_lifetimes_LDADD = lib/libweir-core.la
tests_whole_peers_LDADD = lib/libweir-core.la

# Threads under load, which goes on for as long as it is told: four seconds here.
stress_tests = tests/whole/stress
tests_whole_stress_LDADD = lib/libweir-core.la

# The same under ThreadSanitizer: sixteen threads on sixteen streams and their own default streams.
THREADS_SECONDS = 40
.PHONY: check-threads
check-threads:
	+@top_srcdir='$(top_srcdir)' TESTS=tests/whole/stress $(SHELL) $(top_srcdir)/tests/tree/check-under tsan
	TSAN_OPTIONS='halt_on_error=1 history_size=4' check-tsan/tests/whole/stress --threads 16 \
	    --seconds $(THREADS_SECONDS) --seed $$(date +%s)

# What a developer runs who has Valgrind.
developer_programs += tests/whole/shared_lines
tests_whole_shared_lines_LDADD = lib/libweir-core.la
EXTRA_DIST += tests/whole/check-lines
.PHONY: check-lines
check-lines: tests/whole/shared_lines
	top_srcdir='$(top_srcdir)' top_builddir=. $(SHELL) $(top_srcdir)/tests/run-tap $(SHELL) $(top_srcdir)/tests/whole/check-lines

# Which lines and branches of lib/ the unit tests reach: minutes, in a build of its own.
.PHONY: check-coverage
check-coverage:
	+@top_srcdir='$(top_srcdir)' top_builddir='$(top_builddir)' CC='$(CC)' MAKE='$(MAKE)' \
	$(SHELL) $(top_srcdir)/tests/tree/check-coverage

# PyTorch on the device model, natively and under `weir run', by the interpreter TORCH_INTERPRETER: minutes.
TORCH_INTERPRETER = python3
.PHONY: check-torch-model
check-torch-model: all tests/libcuda/libcuda.la
	@top_srcdir='$(top_srcdir)' top_builddir=. CC='$(CC)' SANITIZE_CFLAGS='$(WEIR_SANITIZE_CFLAGS)' \
	TEST_TIMEOUT=$$((2 * $${FEATURES_SECONDS:-300} + 600)) \
	$(SHELL) $(top_srcdir)/tests/run-tap $(SHELL) $(top_srcdir)/tests/torch/check-features '$(TORCH_INTERPRETER)'
	@top_srcdir='$(top_srcdir)' top_builddir=. SANITIZE_CFLAGS='$(WEIR_SANITIZE_CFLAGS)' TEST_TIMEOUT=1200 \
	$(SHELL) $(top_srcdir)/tests/run-tap $(SHELL) $(top_srcdir)/tests/torch/check-newer '$(TORCH_INTERPRETER)'

# All faults that tests/whole/test_faults knows, not the choice of `make check': an hour.
.PHONY: check-faults
check-faults: tests/whole/test_faults
	WEIR_TEST_FAULTS=all TEST_TIMEOUT=14400 $(SHELL) $(top_srcdir)/tests/run-tap tests/whole/test_faults

# Fuzz targets, tests/fuzz/fuzz_NAME.c.  `make check' runs each as tests/fuzz_NAME, with its corpus and
# inputs made of it; `make fuzz' gives it to libFuzzer for FUZZ_SECONDS, or to whatever FUZZ_CC brings.
fuzz_names = trace options api profile
fuzz_tests = tests/fuzz_trace tests/fuzz_options tests/fuzz_api tests/fuzz_profile
fuzz_ldadd = lib/libweir-core.la
fuzz_driver = tests/fuzz/driver.c tests/fuzz/fuzz.h
tests_fuzz_trace_SOURCES = tests/fuzz/fuzz_trace.c $(fuzz_driver)
tests_fuzz_trace_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_TARGET='"trace"' -DFUZZ_MUTATED=20000
tests_fuzz_trace_LDADD = $(fuzz_ldadd)
tests_fuzz_options_SOURCES = tests/fuzz/fuzz_options.c $(fuzz_driver)
tests_fuzz_options_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_TARGET='"options"' -DFUZZ_MUTATED=50000
tests_fuzz_options_LDADD = $(fuzz_ldadd)
tests_fuzz_api_SOURCES = tests/fuzz/fuzz_api.c tests/fixtures/oracle.h $(fuzz_driver)
tests_fuzz_api_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_TARGET='"api"' \
	-DFUZZ_MUTATED=2000
tests_fuzz_api_LDADD = $(fuzz_ldadd)
tests_fuzz_profile_SOURCES = tests/fuzz/fuzz_profile.c $(fuzz_driver)
tests_fuzz_profile_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_TARGET='"profile"' -DFUZZ_MUTATED=50000
tests_fuzz_profile_LDADD = $(fuzz_ldadd)
EXTRA_DIST += tests/fuzz/corpus
CLEANFILES += trace.crash options.crash api.crash profile.crash

# The library once more, so that the fuzzer sees which way an input goes; each target with it.
FUZZ_CC = clang
FUZZ_SECONDS = 60
fuzz_sanitize = -O2 -g -fsanitize=address,undefined -fno-sanitize-recover=all
EXTRA_LTLIBRARIES += tests/fuzz/libweir-fuzz.la
tests_fuzz_libweir_fuzz_la_SOURCES = $(lib_libweir_core_la_SOURCES)
tests_fuzz_libweir_fuzz_la_CFLAGS = $(WEIR_WARN_CFLAGS) $(fuzz_sanitize) \
	-fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp
tests_fuzz_libweir_fuzz_la_LIBADD = $(WEIR_LIBS)
fuzz_programs = tests/fuzz/libfuzzer-trace tests/fuzz/libfuzzer-options tests/fuzz/libfuzzer-api \
	tests/fuzz/libfuzzer-profile
fuzz_cflags = $(WEIR_WARN_CFLAGS) $(fuzz_sanitize)
fuzz_ldflags = $(fuzz_sanitize) -fsanitize=fuzzer
tests_fuzz_libfuzzer_trace_SOURCES = tests/fuzz/fuzz_trace.c tests/fuzz/fuzz.h
tests_fuzz_libfuzzer_trace_CFLAGS = $(fuzz_cflags)
tests_fuzz_libfuzzer_trace_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_libfuzzer_trace_LDADD = tests/fuzz/libweir-fuzz.la
tests_fuzz_libfuzzer_options_SOURCES = tests/fuzz/fuzz_options.c tests/fuzz/fuzz.h
tests_fuzz_libfuzzer_options_CFLAGS = $(fuzz_cflags)
tests_fuzz_libfuzzer_options_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_libfuzzer_options_LDADD = tests/fuzz/libweir-fuzz.la
tests_fuzz_libfuzzer_api_SOURCES = tests/fuzz/fuzz_api.c tests/fuzz/fuzz.h tests/fixtures/oracle.h
tests_fuzz_libfuzzer_api_CFLAGS = $(fuzz_cflags)
tests_fuzz_libfuzzer_api_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_libfuzzer_api_LDADD = tests/fuzz/libweir-fuzz.la
tests_fuzz_libfuzzer_profile_SOURCES = tests/fuzz/fuzz_profile.c tests/fuzz/fuzz.h
tests_fuzz_libfuzzer_profile_CFLAGS = $(fuzz_cflags)
tests_fuzz_libfuzzer_profile_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_libfuzzer_profile_LDADD = tests/fuzz/libweir-fuzz.la
EXTRA_DIST += tests/fuzz/run
.PHONY: fuzz
fuzz: $(BUILT_SOURCES)
	@$(SHELL) $(top_srcdir)/tests/fuzz/run --can-build '$(FUZZ_CC)'
	@$(MAKE) $(AM_MAKEFLAGS) CC='$(FUZZ_CC)' CFLAGS= $(fuzz_programs)
	@$(SHELL) $(top_srcdir)/tests/fuzz/run $(top_srcdir) '$(FUZZ_SECONDS)' $(fuzz_names)

# What a packager may choose: the switches of configure, link-time optimisation, musl.
.PHONY: check-configurations
check-configurations:
	+@top_srcdir='$(top_srcdir)' top_builddir=. $(SHELL) $(top_srcdir)/tests/tree/check-configurations \
	    $(CONFIGURATIONS)

# That nothing is left out of the tarball, and that it builds and works.
.PHONY: check-dist
check-dist: dist-xz
	+@top_srcdir='$(top_srcdir)' $(SHELL) $(top_srcdir)/tests/tree/check-dist '$(abs_builddir)/$(distdir).tar.xz'

# That the same commit makes the same tarball.
.PHONY: check-tarball
check-tarball:
	+@top_srcdir='$(top_srcdir)' $(SHELL) $(top_srcdir)/tests/tree/check-tarball

# The suites in builds of their own, in folders of this one: see tests/tree/check-under.
builds_apart = asan tsan valgrind clang
# tests/elsewhere does that on another machine, which has more processors.
.PHONY: $(builds_apart:%=check-%)
$(builds_apart:%=check-%):
	+@top_srcdir='$(top_srcdir)' $(SHELL) $(top_srcdir)/tests/tree/check-under $(@:check-%=%)
clean-local:
	rm -rf coverage check-configurations check-packages check-quickstart check-same $(builds_apart:%=check-%)

TESTS =
if WEIR_TESTS
check_LTLIBRARIES = $(fake_drivers) $(model_driver) $(victim_work)
check_PROGRAMS += tests/whole/sim $(unit_tests) $(fuzz_tests) $(stress_tests)
check_DATA = $(bench_programs)
if WEIR_SHARED
check_PROGRAMS += $(public_tests)
check_DATA += $(victims)
endif
TESTS += $(check_PROGRAMS) $(script_tests)

# Of a test that there is, automake writes a rule for the log.
any_log = %.log
$(any_log):
	@printf 'make check: there is no test %s; TESTS may be some of these:\n' '$*' >&2
	@printf '  %s\n' $(check_PROGRAMS) $(script_tests) >&2
	@exit 1
if HAVE_CUDA_H
check_PROGRAMS += $(cuda_tests)
endif
else
check-local: check-tests-missing
endif

.PHONY: check-tests-missing
check-tests-missing:
	@echo 'make check: no tests were built: $(weir_tests_note)' >&2
if !WEIR_TESTS_OFF
	@exit 1
endif

# With what was installed, a program outside the tree builds and runs.
installcheck-local:
	@CC='$(CC)' CFLAGS='$(WEIR_SANITIZE_CFLAGS) $(CFLAGS)' LDFLAGS='$(LDFLAGS)' \
	PKG_CONFIG='$(PKG_CONFIG)' version='$(PACKAGE_VERSION)' prefix='$(DESTDIR)$(prefix)' \
	pkgconfigdir='$(DESTDIR)$(pkgconfigdir)' libdir='$(DESTDIR)$(libdir)' \
	bindir='$(bindir)' pkglibdir='$(pkglibdir)' DESTDIR='$(DESTDIR)' \
	$(SHELL) $(top_srcdir)/tests/tree/check-installed

# The test suites.  Each is a program (or script) of its own that writes TAP.
#
# A unit test, tests/test_NAME.c, links lib/libweir-core.la and may call internal
# functions.  An integration test, tests/test_public_NAME.c, links the shared
# lib/libweir.la and sees what a user sees.  A suite that needs a GPU prints
# "1..0 # SKIP no CUDA device" and exits with 77 where there is none.

TEST_EXTENSIONS =
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run-tap
AM_TESTS_ENVIRONMENT = \
	CK_TAP_LOG_FILE_NAME=-; CK_VERBOSITY=silent; \
	export CK_TAP_LOG_FILE_NAME CK_VERBOSITY; \
	top_srcdir='$(top_srcdir)'; top_builddir='$(top_builddir)'; \
	CC='$(CC)'; CXX='$(CXX)'; CPPFLAGS='$(CPPFLAGS)'; NM='$(NM)'; \
	CUDA_CPPFLAGS='$(CUDA_CPPFLAGS)'; HAVE_CUDA_H='$(have_cuda_h)'; \
	export top_srcdir top_builddir CC CXX CPPFLAGS NM CUDA_CPPFLAGS HAVE_CUDA_H;

if HAVE_CUDA_H
have_cuda_h = yes
else
have_cuda_h = no
endif

dist_check_SCRIPTS = \
	tests/check-exports \
	tests/check-headers \
	tests/run-tap

TESTS =
if WEIR_TESTS
TESTS += $(check_PROGRAMS) \
	tests/check-exports \
	tests/check-headers
else
check-local: check-tests-missing
endif

.PHONY: check-tests-missing
check-tests-missing:
	@echo 'make check: no tests were built: $(weir_tests_note)' >&2
if !WEIR_TESTS_OFF
	@exit 1
endif

unit_test_cflags = $(AM_CFLAGS) $(CHECK_CFLAGS)
unit_test_ldadd = lib/libweir-core.la $(CHECK_LIBS)
public_test_ldadd = lib/libweir.la $(CHECK_LIBS)

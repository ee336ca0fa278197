# The public headers; what is listed here is installed.

weirincludedir = $(includedir)/weir
weirinclude_HEADERS = \
	include/weir/allocator.h \
	include/weir/cuda.h \
	include/weir/growth.h \
	include/weir/options.h \
	include/weir/share.h \
	include/weir/stats.h \
	include/weir/tensors.h \
	include/weir/status.h \
	include/weir/trace.h \
	include/weir/oom_report.h \
	include/weir/weir.h
if WEIR_ADAPTERS
weirinclude_HEADERS += include/weir/adapters.h
else
EXTRA_DIST += include/weir/adapters.h
endif

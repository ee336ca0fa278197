# The weir program has a file for each subcommand, and folders for code that several subcommands share.
EXTRA_DIST += cli/README cli/common/README cli/formats/README cli/replay/README cli/report/README

if WEIR_PROGRAM
bin_PROGRAMS += weir
weir_SOURCES = \
	cli/common/commands.h \
	cli/common/files.c \
	cli/common/files.h \
	cli/common/flags.c \
	cli/common/flags.h \
	cli/common/jsonfile.c \
	cli/common/jsonfile.h \
	cli/common/memory.h \
	cli/common/progress.c \
	cli/common/progress.h \
	cli/common/runner.c \
	cli/common/runner.h \
	cli/common/shipped.c \
	cli/common/shipped.h \
	cli/common/sink.c \
	cli/common/sink.h \
	cli/common/span.c \
	cli/common/span.h \
	cli/common/spell.c \
	cli/common/spell.h \
	cli/formats/input.c \
	cli/formats/input.h \
	cli/formats/lines.c \
	cli/formats/minimalloc.c \
	cli/formats/rmm.c \
	cli/report/report.c \
	cli/report/report.h \
	cli/replay/benchmark.c \
	cli/replay/benchmark.h \
	cli/replay/binary_trace.c \
	cli/replay/binary_trace.h \
	cli/replay/busy.c \
	cli/replay/busy.h \
	cli/replay/child.c \
	cli/replay/configuration.c \
	cli/replay/configuration.h \
	cli/replay/configuration_raw.c \
	cli/replay/configuration_weir.c \
	cli/replay/explain.c \
	cli/replay/findings.c \
	cli/replay/findings.h \
	cli/replay/result.c \
	cli/replay/result.h \
	cli/replay/table.c \
	cli/bench.c \
	cli/command.c \
	cli/command.h \
	cli/frameworks.c \
	cli/frameworks.h \
	cli/groups.c \
	cli/groups.h \
	cli/holders.c \
	cli/holders.h \
	cli/info.c \
	cli/record.c \
	cli/replay.c \
	cli/run.c \
	cli/shims.c \
	cli/shims.h \
	cli/top.c \
	cli/top_view.c \
	cli/top_view.h \
	cli/torch.c \
	cli/tune.c \
	cli/tracing.c \
	cli/tracing.h \
	cli/weir.c
weir_CPPFLAGS = $(AM_CPPFLAGS) -DWEIR_TRACES_DIR='"$(tracesdir)"' \
	-DWEIR_PKGLIB_DIR='"$(pkglibdir)"' -DWEIR_PREFIX='"$(prefix)"' \
	-DWEIR_SHIM_DIR='"$(torchshimdir)"' $(WEIR_ZSTD_CPPFLAGS)
weir_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(ZLIB_CFLAGS) $(ZSTD_CFLAGS)
weir_LDADD = lib/libweir-shown.la lib/libweir-core.la $(JANSSON_LIBS) $(ZLIB_LIBS) $(ZSTD_LIBS) -lm

# The template of reports is compiled into the program: each line of page.html becomes a line of a C string.
EXTRA_DIST += cli/report/page.html
BUILT_SOURCES += cli/report/page_html.h
CLEANFILES += cli/report/page_html.h
cli/report/page_html.h: cli/report/page.html
	$(AM_V_GEN)$(MKDIR_P) cli/report && \
	{ echo '/* Made from page.html by the build. */' && \
	  echo 'static const char report_page[] =' && \
	  $(SED) -e 's/[\\"]/\\&/g' -e 's/^/    "/' -e 's/$$/\\n"/' $(top_srcdir)/cli/report/page.html && \
	  echo '    "";'; } >$@.new && mv $@.new $@
# This rule is for `make weir' without `make all', which would build BUILT_SOURCES first.
cli/report/weir-report.$(OBJEXT): cli/report/page_html.h
endif

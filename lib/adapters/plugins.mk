# libweir-adapters.so: a module with weir's functions for the plug-in points of frameworks, which load it by name.
#
# The module contains no copy of weir and needs libweir.so, so that the process has one weir.

noinst_LTLIBRARIES += lib/adapters/libadapters.la
lib_adapters_libadapters_la_SOURCES = \
	lib/adapters/plugins/plugins.c \
	lib/adapters/plugins/plugins.h \
	lib/adapters/plugins/cupy.c \
	lib/adapters/plugins/handler.c \
	lib/adapters/plugins/onnx.c \
	lib/adapters/plugins/torch.c
# torch.c throws exceptions, which pass through its functions.
lib_adapters_libadapters_la_CFLAGS = $(AM_CFLAGS) -fexceptions

if WEIR_ADAPTERS
pkglib_LTLIBRARIES += lib/adapters/libweir-adapters.la
endif
lib_adapters_libweir_adapters_la_SOURCES =
lib_adapters_libweir_adapters_la_LIBADD = lib/adapters/libadapters.la $(WEIR_LIBS)
# The module is linked with the file of the library.  With the library's .la file, libtool would link the module again
# during the installation, and only for the folder that configure was given.
lib_adapters_libweir_adapters_la_LDFLAGS = -module -avoid-version -shared -no-undefined \
	-Wl,lib/.libs/libweir.so $(WEIR_MODULE_LDFLAGS)
EXTRA_lib_adapters_libweir_adapters_la_DEPENDENCIES = lib/libweir.la
if HAVE_VERSION_SCRIPT
lib_adapters_libweir_adapters_la_LDFLAGS += \
	-Wl,--version-script=$(top_srcdir)/lib/adapters/libweir-adapters.map
EXTRA_lib_adapters_libweir_adapters_la_DEPENDENCIES += lib/adapters/libweir-adapters.map
else
lib_adapters_libweir_adapters_la_LDFLAGS += -export-symbols-regex '^weir_[a-z0-9]'
endif
EXTRA_DIST += lib/adapters/libweir-adapters.map

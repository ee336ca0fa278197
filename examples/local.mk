# Programs that show how the library is used.  They are built with all else, so that they stay true, run by
# tests/check-examples on the device model, and installed as sources.

examplesdir = $(docdir)/examples
dist_examples_DATA = \
	examples/growth_callback.c \
	examples/kernels.cu \
	examples/mem_handler.c \
	examples/unchanged.cu
noinst_PROGRAMS += examples/growth_callback examples/mem_handler
examples_mem_handler_LDADD = lib/libweir.la $(WEIR_LIBS)
examples_growth_callback_LDADD = lib/libweir.la $(WEIR_LIBS)

# The CUDA programs, where there is nvcc; they need a GPU to run.  unchanged.cu three times: with CUDA's own
# pool, with weir, with weir and per-thread default streams.
cuda_examples = examples/kernels examples/unchanged examples/unchanged-weir examples/unchanged-ptds
NVCCFLAGS = -O2
cuda_weir = -I$(top_srcdir)/include -Llib/.libs -lweir
CLEANFILES += $(cuda_examples)
.PHONY: cuda-examples
cuda-examples: $(cuda_examples)
examples/kernels: examples/kernels.cu include/weir/cuda.h lib/libweir.la
	$(NVCC) $(NVCCFLAGS) $(top_srcdir)/examples/kernels.cu $(cuda_weir) -o $@
examples/unchanged: examples/unchanged.cu
	$(NVCC) $(NVCCFLAGS) $(top_srcdir)/examples/unchanged.cu -o $@
examples/unchanged-weir: examples/unchanged.cu include/weir/cuda.h lib/libweir.la
	$(NVCC) $(NVCCFLAGS) -DWEIR_OVERRIDE -include weir/cuda.h \
	    $(top_srcdir)/examples/unchanged.cu $(cuda_weir) -o $@
examples/unchanged-ptds: examples/unchanged.cu include/weir/cuda.h lib/libweir.la
	$(NVCC) $(NVCCFLAGS) --default-stream per-thread -DWEIR_OVERRIDE -include weir/cuda.h \
	    $(top_srcdir)/examples/unchanged.cu $(cuda_weir) -o $@

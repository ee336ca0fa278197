# Programs that show how the library is used, installed as sources.  Those in C are built with all else, so
# that they stay true, and run by tests/whole/check-examples on the device model; those in Python, each with a
# framework, are run by tests/gpu/adapters, those of JAX alone by bench/record-jax.

examplesdir = $(docdir)/examples
dist_examples_DATA = \
	examples/cupy_alloc.py \
	examples/engines.ipynb \
	examples/growth_callback.c \
	examples/kernels.cu \
	examples/mem_handler.c \
	examples/numba_alloc.py \
	examples/onnx_alloc.py \
	examples/rmm_alloc.py \
	examples/torch_alloc.py \
	examples/unchanged.cu
jaxexamplesdir = $(examplesdir)/jax
dist_jaxexamples_DATA = \
	examples/jax/array.py \
	examples/jax/device_put.py \
	examples/jax/jitted.py
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

# The package that Python programs import.
pythonpackagedir = $(pkgdatadir)/python/weir_cuda
python_package = \
	contrib/weir_cuda/__init__.py \
	contrib/weir_cuda/__main__.py \
	contrib/weir_cuda/_allocator.py \
	contrib/weir_cuda/_library.py \
	contrib/weir_cuda/_program.py \
	contrib/weir_cuda/_trim.py \
	contrib/weir_cuda/cupy.py \
	contrib/weir_cuda/jax.py \
	contrib/weir_cuda/numba.py \
	contrib/weir_cuda/py.typed \
	contrib/weir_cuda/rmm.py \
	contrib/weir_cuda/torch.py \
	contrib/weir_cuda/torch_snapshot.py
EXTRA_DIST += $(python_package)
if WEIR_ADAPTERS
pythonpackage_DATA = $(python_package)
endif

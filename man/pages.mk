# made by man/update.

command_pages = \
	man/weir-bench.1 \
	man/weir-convert.1 \
	man/weir-info.1 \
	man/weir-record.1 \
	man/weir-replay.1 \
	man/weir-report.1 \
	man/weir-run.1 \
	man/weir-top.1 \
	man/weir-torch.1

function_pages = \
	man/weir_allocator.3 \
	man/weir_alloc.3 \
	man/weir_bind.3 \
	man/weir_reserve.3 \
	man/weir_access.3 \
	man/weir_share.3 \
	man/weir_options.3 \
	man/weir_growth.3 \
	man/weir_stats.3 \
	man/weir_verdict.3 \
	man/weir_status.3 \
	man/weir_trace.3 \
	man/weir_cuda.3 \
	man/weir_adapters.3

# Each function's name leads to its page.
function_links = \
	weir_allocator_create.3:weir_allocator \
	weir_allocators_create.3:weir_allocator \
	weir_allocator_destroy.3:weir_allocator \
	weir_default_allocator.3:weir_allocator \
	weir_device_allocator.3:weir_allocator \
	weir_stream_allocator.3:weir_allocator \
	weir_block_allocator.3:weir_allocator \
	weir_version.3:weir_allocator \
	weir_free.3:weir_alloc \
	weir_alloc_any.3:weir_alloc \
	weir_free_any.3:weir_alloc \
	weir_use.3:weir_alloc \
	weir_block_range.3:weir_alloc \
	weir_unbind.3:weir_bind \
	weir_preallocate.3:weir_reserve \
	weir_set_limit.3:weir_reserve \
	weir_pool.3:weir_reserve \
	weir_trim.3:weir_reserve \
	weir_decay.3:weir_reserve \
	weir_low_memory.3:weir_reserve \
	weir_profile_save.3:weir_reserve \
	weir_set_access.3:weir_access \
	weir_export.3:weir_share \
	weir_import_create.3:weir_share \
	weir_import_block.3:weir_share \
	weir_import_free.3:weir_share \
	weir_import_destroy.3:weir_share \
	weir_ipc_make.3:weir_share \
	weir_ipc_open.3:weir_share \
	weir_ipc_close.3:weir_share \
	weir_options_init_sized.3:weir_options \
	weir_options_init.3:weir_options \
	weir_options_from_env.3:weir_options \
	weir_options_set.3:weir_options \
	weir_latencies.3:weir_stats \
	weir_events.3:weir_stats \
	weir_event_cause_word.3:weir_stats \
	weir_last_refusal.3:weir_stats \
	weir_last_verdict.3:weir_verdict \
	weir_verdict_text.3:weir_verdict \
	weir_verdict_cause_word.3:weir_verdict \
	weir_status_name.3:weir_status \
	weir_status_message.3:weir_status \
	weir_last_driver_result.3:weir_status \
	weir_trace_reader_create.3:weir_trace \
	weir_trace_reader_destroy.3:weir_trace \
	weir_trace_next.3:weir_trace \
	weir_trace_field.3:weir_trace \
	weir_trace_comments.3:weir_trace \
	weir_trace_message.3:weir_trace \
	weir_stream_from_cuda.3:weir_cuda \
	weir_status_to_cuda.3:weir_cuda \
	weirMallocAsync.3:weir_cuda \
	weirMallocFromPoolAsync.3:weir_cuda \
	weir_cuda_give_back.3:weir_cuda \
	weirFreeAsync.3:weir_cuda \
	weirFreeAsyncOrCuda.3:weir_cuda \
	weirFreeOrCuda.3:weir_cuda \
	weir_torch_alloc.3:weir_adapters \
	weir_torch_free.3:weir_adapters \
	weir_torch_init.3:weir_adapters \
	weir_torch_reset.3:weir_adapters \
	weir_torch_memory_fraction.3:weir_adapters \
	weir_torch_base_alloc.3:weir_adapters \
	weir_torch_record_stream.3:weir_adapters \
	weir_cupy_malloc.3:weir_adapters \
	weir_cupy_free.3:weir_adapters \
	weir_onnx_alloc.3:weir_adapters \
	weir_onnx_free.3:weir_adapters \
	weir_onnx_empty_cache.3:weir_adapters \
	weir_onnx_stream.3:weir_adapters \
	weir_mem_handler_init.3:weir_adapters \
	weir_handler_alloc.3:weir_adapters \
	weir_handler_free.3:weir_adapters

# The manual pages.

dist_man_MANS += \
	man/libweir.3 \
	man/weir-settings.7
if WEIR_PROGRAM
dist_man_MANS += man/weir.1
endif

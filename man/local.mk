# The manual pages.

dist_man_MANS += man/libweir.3
dist_man_MANS += man/weir-settings.7
dist_man_MANS += man/weir.1

# The manual pages.

dist_man_MANS += man/weir-settings.7

/* SPDX-License-Identifier: MIT */
/* report.h: the results of weir bench, replay and run as one HTML file, which draws itself in a browser.
 *
 * report.c checks results, and puts them as JSON into page.html, which the build compiles in.  A document is the
 * object that weir bench and weir replay write (weir-json(7)), the object of a process of weir run, or an array of
 * documents.
 *
 * This file must not know how anything was measured.
 */
#ifndef WEIR_CLI_REPORT_H
#define WEIR_CLI_REPORT_H

#include <jansson.h>

/* Writes the page of a document and prints its path.  `from' is the file that has the document, or "" if no file has
 * it.  Returns the exit code: 1 after a failure, which a message has reported, else 0. */
int report_of(json_t *document, const char *from, const char *page);

/* Reads all documents of a file into an array.  Returns a new reference, or NULL with a message printed. */
json_t *report_read(const char *path);

#endif

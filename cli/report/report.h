/* SPDX-License-Identifier: MIT */
/* report.h: writes the results of weir bench, replay and run as one HTML page.  The page draws its charts in the
 * browser.
 *
 * report.c checks the results and inserts them as JSON into page.html, which the build compiles into the program.  A
 * document is one of these: the JSON object that weir bench or weir replay writes (weir-json(7)), the object that a
 * process under weir run writes, or an array of documents.
 */
#ifndef WEIR_CLI_REPORT_H
#define WEIR_CLI_REPORT_H

#include <jansson.h>

/* Writes the HTML page for a JSON document (results of a command), and prints the path of the page.  `from' is the file
 * of the document, or "".  Returns 0 on success.  On failure, prints a message and returns 1. */
int report_of(json_t *document, const char *from, const char *page);

/* Reads all JSON documents of a file, and returns a new array of them.  On failure, prints a message and returns
 * NULL. */
json_t *report_read(const char *path);

#endif

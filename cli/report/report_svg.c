/* SPDX-License-Identifier: MIT */
/* report_svg.c: gnuplot's pictures for a page: with names that do not clash there, and in a third of the bytes.
 *
 * A picture is one text, written from its beginning to its end.  Left out are groups that say nothing, points
 * on a straight line, and what each mark and label says alike; the page's style has the latter.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/report.h"

/* Bytes of the character that begins there; 0: none does. */
static size_t character(const char *text) {
    unsigned char first = (unsigned char)*text;
    size_t bytes = first < 0x80                    ? 1
                   : first >= 0xc2 && first < 0xe0 ? 2
                   : first >= 0xe0 && first < 0xf0 ? 3
                   : first >= 0xf0 && first < 0xf5 ? 4
                                                   : 0;

    for (size_t i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

void report_text(FILE *file, const char *text) {
    while (text && *text) {
        size_t bytes = character(text);

        if (*text == '<')
            fputs("&lt;", file);
        else if (*text == '>')
            fputs("&gt;", file);
        else if (*text == '&')
            fputs("&amp;", file);
        else if (*text == '"')
            fputs("&quot;", file);
        else if (bytes == 0 || ((unsigned char)*text < ' ' && *text != '\n'))
            fputc('?', file);
        else
            fwrite(text, 1, bytes, file);
        text += bytes ? bytes : 1;
    }
}

static int skip_element(const char **at, const char *open, const char *close) {
    const char *end;

    if (strncmp(*at, open, strlen(open)) != 0)
        return 0;
    end = strstr(*at, close);
    if (!end)
        return 0;
    *at = end + strlen(close);
    return 1;
}

/* What gnuplot says of every element, and what elements have anyway: the whole picture says the fonts. */
static int skip_default(const char **at) {
    static const char plot[] = " id=\"gnuplot_plot_";
    static const char *const defaults[] = {" fill=\"none\" color=\"black\" stroke=\"currentColor\"",
                                           " stroke-width=\"1.00\"",
                                           " stroke-linecap=\"butt\"",
                                           " stroke-linejoin=\"miter\"",
                                           " font-family=\"sans-serif\"",
                                           " font-size=\"12.00\""};

    if (strncmp(*at, plot, sizeof plot - 1) == 0) {
        *at += sizeof plot - 1;
        *at += strcspn(*at, "\"") + 1;
        return 1;
    }
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (strncmp(*at, defaults[i], strlen(defaults[i])) == 0) {
            *at += strlen(defaults[i]);
            return 1;
        }
    return 0;
}

/* A number that begins there, and is no part of a name. */
static int begins_coordinate(const char *begin, const char *at) {
    char before = at > begin ? at[-1] : ' ';

    return *at >= '1' && *at <= '9' &&
           (before == 'M' || before == 'L' || (before != '.' && !isalnum((unsigned char)before)));
}

/* Coordinates are fine enough by tenths of a pixel, of an area by whole ones; parts of one, such as opacities, stay.
 * 1: one was written. */
static int put_coordinate(FILE *file, const char *begin, const char **at, int is_area) {
    char *end;
    double value;

    if (!begins_coordinate(begin, *at))
        return 0;
    value = strtod(*at, &end);
    if (end - *at < 4 || end[-3] != '.')
        return 0;
    *at = end;
    value = is_area ? round(value) : round(value * 10.0) / 10.0;
    fprintf(file, value == floor(value) ? "%.0f" : "%.1f", value);
    return 1;
}

/* ------------------------------------------------------------------- paths ---- */

/* In tenths of a pixel. */
struct point {
    char command; /* M or L */
    long x, y;
};

struct path {
    struct point *points;
    size_t count, room;
};

/* On the straight way from `a` to `c`. */
static int is_between(const struct point *a, const struct point *b, const struct point *c) {
    long x1 = b->x - a->x, y1 = b->y - a->y, x2 = c->x - b->x, y2 = c->y - b->y;

    return b->command == 'L' && c->command == 'L' && x1 * y2 == x2 * y1 && x1 * x2 >= 0 &&
           y1 * y2 >= 0;
}

/* A point that the line needs: not one on the way to the next, and no move that another follows. */
static int add_point(struct path *path, struct point point) {
    struct point *last = path->count > 0 ? &path->points[path->count - 1] : NULL;

    if (path->count > 1 && is_between(last - 1, last, &point)) {
        *last = point;
        return 1;
    }
    if (last && last->command == 'M' && point.command == 'M') {
        *last = point;
        return 1;
    }
    if (path->count == path->room) {
        size_t room = path->room ? 2 * path->room : 64;
        struct point *more = reallocarray(path->points, room, sizeof *more);

        if (!more)
            return 0;
        path->points = more;
        path->room = room;
    }
    path->points[path->count++] = point;
    return 1;
}

/* Tenths, without what a path needs none of: ".5", "-12", "3.4". */
static void put_tenths(FILE *file, long tenths, int is_first) {
    long whole = labs(tenths) / 10, part = labs(tenths) % 10;

    fputs(tenths < 0 ? "-" : is_first ? "" : " ", file);
    if (whole > 0 || part == 0)
        fprintf(file, "%ld", whole);
    if (part > 0)
        fprintf(file, ".%ld", part);
}

/* By the way from point to point, which takes fewer digits. */
static void write_path(FILE *file, struct path *path) {
    const struct point *last = NULL;
    char letter = ' ';

    if (path->count > 0 && path->points[path->count - 1].command == 'M')
        path->count--;
    for (size_t i = 0; i < path->count; i++) {
        const struct point *point = &path->points[i];
        long x = last ? point->x - last->x : point->x, y = last ? point->y - last->y : point->y;
        char next = point->command == 'M' ? (last ? 'm' : 'M') : x == 0 ? 'v' : y == 0 ? 'h' : 'l';

        if (next != letter || next != 'l')
            fputc(next, file);
        if (next != 'v')
            put_tenths(file, x, next != letter || next != 'l');
        if (next != 'h')
            put_tenths(file, y, next == 'v');
        letter = next;
        last = point;
    }
}

/* "X,Y"; 1: it is there. */
static int read_pair(const char **at, long *x, long *y) {
    char *end;

    *x = lround(strtod(*at, &end) * 10.0);
    if (end == *at || *end != ',')
        return 0;
    *at = end + 1;
    *y = lround(strtod(*at, &end) * 10.0);
    if (end == *at)
        return 0;
    *at = end;
    return 1;
}

/* So many points leave whole pixels between them: tenths would be digits and nothing to see. */
enum { COARSE_POINTS = 16 };

static void coarsen(struct path *path) {
    size_t count = path->count;

    if (count < COARSE_POINTS)
        return;
    path->count = 0;
    for (size_t i = 0; i < count; i++) {
        struct point point = path->points[i];

        point.x = (point.x + 5) / 10 * 10;
        add_point(path, point); /* has room */
    }
}

/* A path that is moves and lines alone.  1: it was written. */
static int put_path(FILE *file, const char **at) {
    const char *from = *at + 3;
    struct path path = {0};
    struct point point;
    int good = strncmp(*at, "d='", 3) == 0 && (*at)[-1] == ' ';

    while (good) {
        from += strspn(from, " \t\r\n");
        if (*from != 'M' && *from != 'L')
            break;
        point.command = *from++;
        good = read_pair(&from, &point.x, &point.y) && add_point(&path, point);
    }
    good = good && *from == '\'';
    if (good) {
        coarsen(&path);
        fputs("d='", file);
        write_path(file, &path);
        *at = from;
    }
    free(path.points);
    return good;
}

/* An area, by whole pixels, as a path.  1: it was written. */
static int put_polygon(FILE *file, const char **at) {
    static const char begin[] = "<polygon fill = '", opacity[] = "' fill-opacity = '",
                      points[] = "' points = '";
    const char *from = *at + sizeof begin - 1, *fill = from;
    struct path path = {0};
    struct point point = {.command = 'M'};
    size_t fill_bytes;
    double part = 1.0;
    int good = strncmp(*at, begin, sizeof begin - 1) == 0;

    if (!good)
        return 0;
    fill_bytes = strcspn(fill, "'");
    from += fill_bytes;
    if (strncmp(from, opacity, sizeof opacity - 1) == 0) {
        char *end;

        part = strtod(from + sizeof opacity - 1, &end);
        from = end;
    }
    good = strncmp(from, points, sizeof points - 1) == 0;
    for (from += good ? sizeof points - 1 : 0; good && *from && *from != '\'';
         from += strspn(from, " \t\r\n")) {
        good = read_pair(&from, &point.x, &point.y);
        point.x = (point.x + 5) / 10 * 10;
        point.y = (point.y + 5) / 10 * 10;
        good = good && add_point(&path, point);
        point.command = 'L';
    }
    good = good && strncmp(from, "'/>", 3) == 0 &&
           memmem(fill, fill_bytes, "url(", 4) == NULL; /* a name */
    if (good) {
        fprintf(file, "<path stroke='none' fill='%.*s'", (int)fill_bytes, fill);
        if (part < 1.0)
            fprintf(file, " fill-opacity='%g'", part);
        fputs(" d='", file);
        write_path(file, &path);
        fputs("z'/>", file);
        *at = from + 3;
    }
    free(path.points);
    return good;
}

/* ---------------------------------------------------------- marks and labels ---- */

/* "<use xlink:href='#NAME' transform='translate(X,Y) scale(S)' color='C'/>". */
struct mark {
    const char *name, *behind; /* behind the place: scale and colour */
    size_t name_bytes, behind_bytes;
    double x, y, scale;
};

static int read_mark(const char **at, struct mark *mark) {
    static const char begin[] = "<use xlink:href='#", place[] = "' transform='translate(",
                      scale[] = ") scale(";
    const char *from = *at + strspn(*at, " \t\r\n"), *end;
    char *number;

    if (strncmp(from, begin, sizeof begin - 1) != 0)
        return 0;
    mark->name = from + sizeof begin - 1;
    mark->name_bytes = strcspn(mark->name, "'");
    from = mark->name + mark->name_bytes;
    end = strstr(from, "/>");
    if (!end || strncmp(from, place, sizeof place - 1) != 0)
        return 0;
    mark->x = strtod(from + sizeof place - 1, &number);
    if (*number != ',')
        return 0;
    mark->y = strtod(number + 1, &number);
    if (strncmp(number, scale, sizeof scale - 1) != 0)
        return 0;
    mark->scale = strtod(number + sizeof scale - 1, &number);
    if (strncmp(number, ")'", 2) != 0 || mark->scale <= 0.0)
        return 0;
    mark->behind = number + 2;
    mark->behind_bytes = (size_t)(end - mark->behind);
    *at = end + 2;
    return 1;
}

static int is_alike(const struct mark *a, const struct mark *b) {
    return a->name_bytes == b->name_bytes && a->behind_bytes == b->behind_bytes &&
           memcmp(a->name, b->name, a->name_bytes) == 0 &&
           memcmp(a->behind, b->behind, a->behind_bytes) == 0 && fabs(a->scale - b->scale) < 1e-6;
}

/* Marks in a row that differ only in their places, as one group.  1: they were written. */
static int put_marks(FILE *file, const char **at) {
    const char *next = *at;
    struct mark mark, first;

    if (!read_mark(&next, &first))
        return 0;
    fprintf(file, "<g transform='scale(%g)'%.*s>", first.scale, (int)first.behind_bytes,
            first.behind);
    mark = first;
    do {
        fprintf(file, "<use href='#%.*s' x='%.1f' y='%.1f'/>", (int)mark.name_bytes, mark.name,
                mark.x / mark.scale, mark.y / mark.scale);
        *at = next;
    } while (read_mark(&next, &mark) && is_alike(&mark, &first));
    fputs("</g>", file);
    return 1;
}

/* "<g transform="translate(X,Y)..." stroke="none" fill="black"...><text>TEXT</text></g>": the page's style knows how
 * texts look.  1: it was written. */
static int put_label(FILE *file, const char **at) {
    static const char begin[] = "<g transform=\"translate(",
                      black[] = "\" stroke=\"none\" fill=\"black\"", small[] = " font-size=\"",
                      anchor[] = " text-anchor=\"", text[] = "<text>", close[] = "</text>",
                      close_group[] = "</g>";
    const char *from = *at, *place, *size = NULL, *where, *words, *end;
    size_t place_bytes, size_bytes = 0;
    double x, y;
    char *number;

    if (strncmp(from, begin, sizeof begin - 1) != 0)
        return 0;
    place = strchr(from, '"') + 1;
    place_bytes = strcspn(place, "\"");
    x = strtod(from + sizeof begin - 1, &number);
    y = *number == ',' ? strtod(number + 1, &number) : 0.0;
    from = place + place_bytes;
    if (strncmp(from, black, sizeof black - 1) != 0)
        return 0;
    from += sizeof black - 1;
    if (strncmp(from, small, sizeof small - 1) == 0) {
        size = from;
        size_bytes = sizeof small - 1 + strcspn(from + sizeof small - 1, "\"") + 1;
        from += size_bytes;
    }
    if (strncmp(from, anchor, sizeof anchor - 1) != 0)
        return 0;
    where = from + sizeof anchor - 1;
    from = strchr(where, '>');
    if (!from)
        return 0;
    from += 1 + strspn(from + 1, " \t\r\n");
    if (strncmp(from, text, sizeof text - 1) != 0)
        return 0;
    words = from + sizeof text - 1;
    words += strspn(words, " ");
    end = strstr(words, close);
    from = end ? end + sizeof close - 1 : words;
    from += strspn(from, " \t\r\n");
    if (!end || memchr(words, '<', (size_t)(end - words)) ||
        strncmp(from, close_group, sizeof close_group - 1) != 0)
        return 0;
    if (strncmp(number, ")\"", 2) == 0)
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\"", x, y);
    else
        fprintf(file, "<text transform=\"%.*s\"", (int)place_bytes, place);
    if (*where != 'm')
        fprintf(file, " class=\"%c\"", *where);
    fprintf(file, "%.*s>%.*s</text>", (int)size_bytes, size ? size : "", (int)(end - words), words);
    *at = from + sizeof close_group - 1;
    return 1;
}

/* ------------------------------------------------------------------- groups ---- */

/* A group that has nothing in it. */
static int skip_empty_group(const char **at) {
    const char *end;

    if (strncmp(*at, "<g ", 3) != 0)
        return 0;
    end = strchr(*at, '>');
    if (!end)
        return 0;
    end += 1 + strspn(end + 1, " \t\r\n");
    if (strncmp(end, "</g>", 4) != 0)
        return 0;
    *at = end + 4;
    return 1;
}

/* Blanks between elements, and more than one in them. */
static int skip_blanks(FILE *file, const char **at, int in_tag) {
    size_t blanks = strspn(*at, " \t\r\n");

    if (blanks == 0 || (!in_tag && (*at)[blanks] != '<' && blanks < 2))
        return 0;
    if (!in_tag && !memchr(*at, '\n', blanks)) /* of a text */
        return 0;
    if (in_tag)
        fputc(' ', file);
    *at += blanks;
    return 1;
}

enum { DEPTH = 64 };

/* Groups that are open; of those that say nothing neither end is written. */
struct groups {
    size_t depth;
    char is_bare[DEPTH];
};

/* 1: it was one end of a group that says nothing. */
static int skip_bare_group(const char **at, struct groups *groups) {
    size_t bytes = strncmp(*at, "<g>", 3) == 0 ? 3 : strncmp(*at, "<g >", 4) == 0 ? 4 : 0;

    if (strncmp(*at, "</g>", 4) == 0) {
        if (groups->depth > 0)
            groups->depth--;
        if (groups->depth >= DEPTH || !groups->is_bare[groups->depth])
            return 0;
        *at += 4;
        return 1;
    }
    if (strncmp(*at, "<g", 2) != 0 || !strchr("> ", (*at)[2]))
        return 0;
    if (groups->depth < DEPTH)
        groups->is_bare[groups->depth] = bytes > 0;
    groups->depth++;
    if (groups->depth > DEPTH)
        return 0;
    *at += bytes;
    return bytes > 0;
}

/* What gnuplot writes and no page needs: blanks, what elements have anyway, titles.  And names get the picture's. */
static void tidy(FILE *file, const char *at, const char *stem) {
    static const char *const names[] = {" id='", " id=\"", "href='#", "url(#"};
    int in_tag = 1;

    while (*at) {
        size_t name;

        if (skip_element(&at, "<title>", "</title>") || skip_element(&at, "<desc>", "</desc>") ||
            (in_tag && skip_default(&at)))
            continue;
        for (name = 0; name < 4; name++)
            if (strncmp(at, names[name], strlen(names[name])) == 0)
                break;
        if (name < 4) {
            fprintf(file, "%sp%s-", names[name], stem);
            at += strlen(names[name]);
        } else if (!skip_blanks(file, &at, in_tag)) {
            in_tag = *at == '<' ? 1 : *at == '>' ? 0 : in_tag;
            fputc(*at++, file);
        }
    }
}

/* What gnuplot writes at length. */
static void shorten(FILE *file, const char *begin) {
    static const char background[] = "<rect x=\"0\" y=\"0\"";
    struct groups groups = {0};
    const char *at = begin;
    int in_tag = 1, is_area = 0;

    while (*at) {
        if (*at == '<' && (skip_empty_group(&at) || put_label(file, &at) || put_marks(file, &at) ||
                           put_polygon(file, &at) || skip_bare_group(&at, &groups))) {
            in_tag = 0;
        } else if (in_tag && (put_path(file, &at) || put_coordinate(file, begin, &at, is_area))) {
            continue;
        } else if (strncmp(at, background, sizeof background - 1) == 0) {
            fputs("<rect stroke=\"none\"", file);
            at += 5;
        } else {
            in_tag = *at == '<' ? 1 : *at == '>' ? 0 : in_tag;
            if (*at == '<')
                is_area = strncmp(at, "<polygon", 8) == 0;
            fputc(*at++, file);
        }
    }
}

void report_svg(FILE *file, const char *svg, const char *stem, const char *what) {
    const char *at = strstr(svg, "<svg");
    char *text = NULL;
    size_t bytes = 0;
    FILE *tidied = at ? open_memstream(&text, &bytes) : NULL;

    if (!tidied)
        return;
    tidy(tidied, at + strlen("<svg"), stem);
    if (fclose(tidied) == 0 && text) {
        fputs("<svg role=\"img\" font-family=\"sans-serif\" font-size=\"12\" fill=\"none\" "
              "color=\"black\" stroke=\"currentColor\" aria-label=\"",
              file);
        report_text(file, what);
        fputc('"', file);
        shorten(file, text);
    }
    free(text);
}

// Builds the folders that a power loss could leave at every instant of a run recorded by tests/shim/disk.c,
// and checks that each contains a checkpoint as new as promised.
//   power_loss RECORD ROOT SEED [--async 1] [--base FOLDER] [--without SYNC]... [--keep FOLDER COUNT]
//     ROOT       the recorded folder; the run's -o is ROOT/out
//     --async    1: the run used --async-save, so steps continue before a model file is complete
//     --base     the contents of ROOT before the run, all of which are on disk
//     --without  ignores these syncs of the program (see syncs[] below). Violations are then expected, and
//                the first one ends the search.
//     --keep     keeps COUNT of the built folders as FOLDER/0, 1, .., each with a file `expect` that contains
//                the step from which a run resumes, or -1
//
// The disk model assumes only what POSIX promises. At any instant the disk has
//   - for a file: its contents at its last sync, plus the first k writes since then, for any k. The last of
//     these writes may be cut at a page boundary (4096 bytes), and any page that they touched may have its
//     old contents, or zeros if the file ended before it;
//   - for names: all changes in a folder before its last sync. Of the later changes, it has the first k
//     (journals preserve the order), any subset, or all but one; changes of one name keep their order. A
//     rename happens completely or not at all. Syncing a file does not sync its name, and syncing a folder
//     does not sync the folder's own name.
// Eight folders are built for each instant: one with only the synced state, one with everything, and six
// random ones.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../llmc_zero/zero.h"
#include "shim/record.h"

enum { PAGE = 4096, DRAWS = 8, MOST_NODES = 4096, NAME = 256 };

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "power_loss: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    exit(2);
}

static void *must(void *p) {
    if (!p) fail("out of memory");
    return p;
}

// Returns a random number from 0 to n - 1. The sequence depends only on SEED.
static uint64_t random_state;
static int64_t draw(int64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

// -------- the record

typedef struct {
    record r;
    char *path, *other;  // relative to ROOT
    const char *bytes;
    int node;  // the file or folder
    int sync;  // for RECORD_SYNC: index in syncs; -1: not listed
} operation;

static operation *operations;
static int n_operations;

static char *text_below(const char *root, const char **next, int length) {
    size_t n = strlen(root);
    const char *text = *next;
    *next += length;
    if (!length) return NULL;
    if (length < (int)n || strncmp(text, root, n)) fail("a path outside of %s: %.*s", root, length, text);
    text += n;
    length -= (int)n;
    if (length && *text == '/') {
        text++;
        length--;
    }
    return must(strndup(text, length));
}

static char *read_file(const char *path, int64_t *bytes) {
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st)) fail("%s: %s", path, strerror(errno));
    char *all = must(malloc(st.st_size + 1));
    *bytes = (int64_t)fread(all, 1, st.st_size, f);
    if (*bytes != st.st_size) fail("%s: cannot be read", path);
    fclose(f);
    all[*bytes] = 0;
    return all;
}

static void read_record(const char *path, const char *root) {
    int64_t bytes;
    const char *next = read_file(path, &bytes), *end = next + bytes;
    while (next < end) {
        operations = must(realloc(operations, (n_operations + 1) * sizeof *operations));
        operation *o = &operations[n_operations++];
        *o = (operation){ .node = -1, .sync = -1 };
        memcpy(&o->r, next, sizeof o->r);
        next += sizeof o->r;
        o->path = text_below(root, &next, o->r.path_len);
        o->other = text_below(root, &next, o->r.other_len);
        o->bytes = next;
        next += o->r.bytes;
    }
    if (next != end) fail("%s: the record ends within an operation", path);
}

// -------- files and folders as the run saw them

// A file or folder. Its index in `nodes` survives renames, like an inode number.
typedef struct {
    int folder;
    char *base;  // its contents in --base
    int64_t base_bytes;
    char *whole;  // its contents after the run
    int64_t whole_bytes;
    char *bytes;  // (size) its contents after a power loss
    int64_t size;
} node;

static node nodes[MOST_NODES];
static int n_nodes;

typedef struct {
    int folder, node;  // the folder that contains the name, and the node that it names; node 0 is ROOT
    char name[NAME];
} entry;

typedef struct {
    entry *entries;
    int n;
} names;

static int find(const names *all, int folder, const char *name) {
    for (int i = 0; i < all->n; i++)
        if (all->entries[i].folder == folder && !strcmp(all->entries[i].name, name)) return i;
    return -1;
}

static void put(names *all, int folder, const char *name, int node) {
    int i = find(all, folder, name);
    if (i < 0) {
        i = all->n++;
        all->entries = must(realloc(all->entries, all->n * sizeof *all->entries));
    }
    all->entries[i] = (entry){ .folder = folder, .node = node };
    snprintf(all->entries[i].name, NAME, "%s", name);
}

static void take_away(names *all, int folder, const char *name) {
    int i = find(all, folder, name);
    if (i >= 0) all->entries[i] = all->entries[--all->n];
}

static int new_node(int folder) {
    if (n_nodes == MOST_NODES) fail("too many files");
    nodes[n_nodes] = (node){ .folder = folder };
    return n_nodes++;
}

// Returns the folder of a path, and its last component in *name.
static int folder_of(const names *all, const char *path, const char **name) {
    int folder = 0;
    for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        char part[NAME];
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        int i = find(all, folder, part);
        if (i < 0) fail("%s: unknown folder", path);
        folder = all->entries[i].node;
    }
    *name = path;
    return folder;
}

static int node_of(const names *all, const char *path) {
    const char *name;
    if (!*path) return 0;
    int folder = folder_of(all, path, &name), i = find(all, folder, name);
    return i < 0 ? -1 : all->entries[i].node;
}

static void read_base(names *all, const char *path, int folder) {
    struct dirent **list;
    int n = scandir(path, &list, NULL, alphasort);
    if (n < 0) fail("%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char below[PATH_MAX];
        struct stat st;
        if (!strcmp(list[i]->d_name, ".") || !strcmp(list[i]->d_name, "..")) continue;
        if (snprintf(below, sizeof below, "%s/%s", path, list[i]->d_name) >= PATH_MAX || stat(below, &st))
            fail("%s: %s", below, strerror(errno));
        int number = new_node(S_ISDIR(st.st_mode));
        put(all, folder, list[i]->d_name, number);
        if (nodes[number].folder)
            read_base(all, below, number);
        else
            nodes[number].base = read_file(below, &nodes[number].base_bytes);
    }
}

// A change to one name, or to two if it is a rename.
typedef struct {
    int at;             // the operation
    int folder, other;  // the folders of `name` and of a rename's `to`; other -1: not a rename
    char name[NAME], to[NAME];
    int node;    // the node that has the new name afterwards; -1: the name is removed
    int synced;  // the operation that puts the change on disk; n_operations: none
} change;

static names base;
static int async;
static unsigned without;  // bit i: syncs[i] is ignored
static change *changes;
static int n_changes;

static change *new_change(const names *now, int at, const char *path) {
    const char *name;
    changes = must(realloc(changes, (n_changes + 1) * sizeof *changes));
    change *c = &changes[n_changes++];
    *c = (change){ .at = at, .other = -1, .node = -1, .synced = n_operations };
    c->folder = folder_of(now, path, &name);
    snprintf(c->name, NAME, "%s", name);
    return c;
}

static void apply(names *all, const change *c) {
    if (c->other >= 0) {
        int i = find(all, c->folder, c->name);
        if (i < 0 || all->entries[i].node != c->node) return;  // not created yet, or removed
        take_away(all, c->folder, c->name);
        put(all, c->other, c->to, c->node);
    } else if (c->node >= 0)
        put(all, c->folder, c->name, c->node);
    else
        take_away(all, c->folder, c->name);
}

static void note_change(const names *now, int at, operation *o) {
    const record_kind kind = o->r.kind;
    const char *to;
    if (kind == RECORD_RENAME) {
        change *c = new_change(now, at, o->path);
        c->node = node_of(now, o->path);
        c->other = folder_of(now, o->other, &to);
        snprintf(c->to, NAME, "%s", to);
    } else if (kind == RECORD_MKDIR || (kind == RECORD_OPEN && o->r.at))
        new_change(now, at, o->path)->node = o->node = new_node(kind == RECORD_MKDIR);
    else if (kind == RECORD_UNLINK || kind == RECORD_RMDIR)
        new_change(now, at, o->path);
}

// Returns the operation that opened the file that `of` works on.
static const operation *opened_for(const operation *of) {
    for (const operation *o = of - 1; o >= operations; o--)
        if (o->r.kind == RECORD_OPEN && o->r.handle == of->r.handle) return o;
    fail("operation %d is on a file that was never opened", (int)(of - operations));
}

static names copy_of(const names *all) {
    names copy = { must(malloc((all->n + 1) * sizeof *all->entries)), all->n };
    memcpy(copy.entries, all->entries, all->n * sizeof *all->entries);
    return copy;
}

// -------- the purpose of each sync

static const struct {
    const char *name, *file;  // file: part of the path of a synced file; NULL: a folder is synced
} syncs[] = {
    { "states", ".states" },             // a rank's file, before its digests are shared
    { "manifest", "/.manifest.json." },  // the manifest, before its rename
    { "before-rename", NULL },           // the checkpoint's folder, before that rename
    { "after-rename", NULL },            // the checkpoint's folder, after that rename
    { "parent", NULL },                  // the output folder, which contains the checkpoint's name
    { "removal", NULL },                 // the checkpoint's folder, after its manifest is removed
    { "model", "/model_" },              // llm.c's file, before its rename
    { "model-name", NULL },              // the output folder, after that rename
    { "output", NULL },                  // the parent of the output folder
    { "summary", "/summary" },           // summary.json, before its rename
};
enum { SYNCS = sizeof syncs / sizeof *syncs };

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int named(const char *name) {
    for (int i = 0; i < SYNCS; i++)
        if (!strcmp(syncs[i].name, name)) return i;
    fail("unknown sync: %s", name);
}

static int is_manifest(const char *path) { return path && ends_with(path, "/manifest.json"); }

// Returns a sync's index in syncs. The last change of names before a folder's sync reveals its purpose.
static int sync_of(const char *path, int at) {
    const operation *o = &operations[at];
    for (int i = 0; i < SYNCS; i++)
        if (syncs[i].file && strstr(path, syncs[i].file)) return i;
    if (!*path) return named("output");
    do o--;
    while (o > operations && o->r.kind != RECORD_RENAME && o->r.kind != RECORD_UNLINK &&
           !(o->r.kind == RECORD_OPEN && o->r.at));
    if (!strcmp(path, "out")) {
        if (o->r.kind != RECORD_RENAME) return -1;
        return is_manifest(o->other)         ? named("parent")
               : strstr(o->other, "/model_") ? named("model-name")
                                             : -1;
    }
    if (o->r.kind == RECORD_RENAME) return named("after-rename");
    return named(o->r.kind == RECORD_UNLINK ? "removal" : "before-rename");
}

static int is_left_out(const operation *o) { return o->sync >= 0 && without >> o->sync & 1; }

// -------- the whole run

// Fills nodes and changes, and finds the sync that puts each change on disk. *now: the names after the run.
static void follow_run(names *now) {
    *now = copy_of(&base);
    for (int i = 0; i < n_operations; i++) {
        operation *o = &operations[i];
        int before = n_changes;
        note_change(now, i, o);
        for (int k = before; k < n_changes; k++) apply(now, &changes[k]);
        if (o->r.kind == RECORD_OPEN && o->node < 0) o->node = node_of(now, o->path);
        if (o->r.kind == RECORD_WRITE || o->r.kind == RECORD_TRUNCATE || o->r.kind == RECORD_SYNC)
            o->node = opened_for(o)->node;
        if (o->r.kind != RECORD_SYNC) continue;
        o->sync = sync_of(opened_for(o)->path, i);
        if (is_left_out(o)) continue;
        for (int k = 0; k < n_changes; k++)
            if ((changes[k].folder == o->node || changes[k].other == o->node) && changes[k].synced > i)
                changes[k].synced = i;
    }
}

// -------- the folder after a power loss

static void resize(node *f, int64_t size) {
    if (size > f->size) {
        f->bytes = must(realloc(f->bytes, size));
        memset(f->bytes + f->size, 0, size - f->size);
    }
    f->size = size;
}

static void do_to_file(node *f, const operation *o, int64_t bytes) {
    if (o->r.kind == RECORD_TRUNCATE) {
        resize(f, o->r.at);
        return;
    }
    if (o->r.at + bytes > f->size) resize(f, o->r.at + bytes);
    memcpy(f->bytes + o->r.at, o->bytes, bytes);
}

static int touches(const operation *o, int number) {
    return o->node == number && (o->r.kind == RECORD_WRITE || o->r.kind == RECORD_TRUNCATE);
}

typedef enum { SYNCED, EVERYTHING, ORDERED, UNORDERED, ALL_BUT_ONE } how;

// Builds the contents of a file after a power loss before operation `cut`.
static void build_file(int number, int cut, how style) {
    node *f = &nodes[number];
    int synced = -1, pending = 0;
    f->size = 0;
    if (f->base) {
        resize(f, f->base_bytes);
        memcpy(f->bytes, f->base, f->base_bytes);
    }
    for (int i = 0; i < cut; i++)
        if (operations[i].node == number && operations[i].r.kind == RECORD_SYNC &&
            !is_left_out(&operations[i]))
            synced = i;
    for (int i = 0; i < cut; i++) {
        if (!touches(&operations[i], number)) continue;
        if (i < synced)
            do_to_file(f, &operations[i], operations[i].r.bytes);
        else
            pending++;
    }
    if (style == SYNCED || !pending) return;
    const int64_t old_size = f->size;
    char *old = must(malloc(old_size + 1));
    memcpy(old, f->bytes ? f->bytes : "", old_size);
    int64_t left = style == EVERYTHING ? pending : draw(pending + 1);
    for (int i = synced + 1; i < cut && left > 0; i++) {
        const operation *o = &operations[i];
        if (!touches(o, number)) continue;
        int64_t bytes = o->r.bytes;
        if (--left == 0 && style != EVERYTHING && o->r.kind == RECORD_WRITE && draw(2))
            bytes = bytes / PAGE ? PAGE * draw(bytes / PAGE) : 0;
        do_to_file(f, o, bytes);
    }
    for (int64_t at = 0; style != EVERYTHING && at < f->size; at += PAGE) {
        int64_t n = f->size - at < PAGE ? f->size - at : PAGE;
        if (draw(4)) continue;
        memset(f->bytes + at, 0, n);
        if (at < old_size) memcpy(f->bytes + at, old + at, old_size - at < n ? old_size - at : n);
    }
    free(old);
}

static int concerns(const change *c, int folder, const char *name) {
    return (c->folder == folder && !strcmp(c->name, name)) || (c->other == folder && !strcmp(c->to, name));
}

static int same_name(const change *a, const change *b) {
    return concerns(a, b->folder, b->name) || (b->other >= 0 && concerns(a, b->other, b->to));
}

// Returns 1 if the disk has the change. *left counts down over the unsynced changes.
static int is_drawn(const change *c, int cut, how style, int64_t *left) {
    if (c->synced < cut) return 1;
    if (style == UNORDERED) return (int)draw(2);
    if (style == ALL_BUT_ONE) return --*left != 0;
    return (*left)-- > 0;
}

// Chooses the changes that reached the disk, and returns the resulting names. If a change of a name is left
// out, later changes of that name are left out too.
static names build_names(int cut, how style) {
    names all = copy_of(&base);
    char *done = must(calloc(n_changes + 1, 1));
    int64_t left = 0;
    for (int i = 0; i < n_changes; i++) left += changes[i].at < cut && changes[i].synced >= cut;
    if (style == ORDERED || style == ALL_BUT_ONE) left = draw(left + 1);
    if (style == SYNCED) left = 0;
    for (int i = 0; i < n_changes && changes[i].at < cut; i++) {
        done[i] = (char)is_drawn(&changes[i], cut, style, &left);
        for (int k = 0; k < i && changes[i].synced >= cut; k++)
            if (!done[k] && same_name(&changes[k], &changes[i])) done[i] = 0;
        if (done[i]) apply(&all, &changes[i]);
    }
    free(done);
    return all;
}

// -------- writing the folder

static void write_file(const char *path, const node *f) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || write(fd, f->bytes, f->size) != f->size || close(fd)) fail("%s: %s", path, strerror(errno));
}

static void path_below(char path[PATH_MAX], const char *folder, const char *name) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) fail("%s: too long", folder);
}

static void write_folder(const char *path, const names *all, int folder) {
    if (mkdir(path, 0777)) fail("%s: %s", path, strerror(errno));
    for (int i = 0; i < all->n; i++) {
        const entry *e = &all->entries[i];
        char below[PATH_MAX];
        if (e->folder != folder) continue;
        path_below(below, path, e->name);
        if (nodes[e->node].folder)
            write_folder(below, all, e->node);
        else
            write_file(below, &nodes[e->node]);
    }
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

static void remove_all(const char *path) {
    if (nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS)) fail("%s: %s", path, strerror(errno));
}

// -------- the promises

static int violations;

static void violation(int cut, how style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void violation(int cut, how style, const char *fmt, ...) {
    static const char *const names_of[] = { "only synced", "everything", "in order", "in any order",
                                            "all but one" };
    va_list args;
    va_start(args, fmt);
    if (violations++ < 10) {
        printf("before operation %d of %d, %s: ", cut, n_operations, names_of[style]);
        vprintf(fmt, args);
        printf("\n");
    }
    va_end(args);
}

// Returns the step in a checkpoint folder's name; -1: not a checkpoint's name.
static int step_in(const char *name) {
    int step = -1;
    return sscanf(name, "step_%8d", &step) == 1 ? step : -1;
}

// Returns the step of the newest checkpoint in --base; -1: none.
static int last_in_base(void) {
    int last = -1;
    for (int i = 0; i < base.n; i++) {
        const int step = step_in(base.entries[i].name);
        if (step > last) last = step;
    }
    return last;
}

// Returns the step of the newest save that ended before operation `cut`; -1: none. A save ends when the
// trainer reopens its logs.
static int ended_before(int cut) {
    int saved = last_in_base(), ended = saved;
    for (int i = 0; i < cut; i++) {
        const operation *o = &operations[i];
        if (o->r.kind == RECORD_RENAME && is_manifest(o->other)) saved = step_in(strstr(o->other, "step_"));
        if (o->r.kind == RECORD_OPEN &&
            (ends_with(o->path, ".log") || ends_with(o->path, ".jsonl") || strstr(o->path, "/summary")))
            ended = saved;
    }
    return ended;
}

// Returns 1 if the model file of a save must exist. With --async-save it may be missing until the next save,
// or the end of the run, begins.
static int model_is_promised(int cut, int saved_step) {
    int saved = 0;
    for (int i = 0; async && i < n_operations; i++) {
        const operation *o = &operations[i];
        if (o->r.kind == RECORD_RENAME && is_manifest(o->other) &&
            step_in(strstr(o->other, "step_")) == saved_step)
            saved = 1;
        const int next_begins = o->r.kind == RECORD_MKDIR ||
                                (o->r.kind == RECORD_OPEN && strstr(o->path, "/summary"));
        if (saved && next_begins) return i < cut;
    }
    return !saved;
}

// Counts the model files that were completed after further steps had been logged.
static int model_files_during_steps(void) {
    int waiting = 0, logged = 0, found = 0;
    for (const operation *o = operations; o < operations + n_operations; o++) {
        if (o->r.kind == RECORD_RENAME && is_manifest(o->other)) {
            waiting = 1;
            logged = 0;
        }
        if (o->r.kind == RECORD_OPEN && ends_with(o->path, ".log")) logged = 1;
        if (o->r.kind == RECORD_RENAME && strstr(o->other, "/model_")) {
            found += waiting && logged;
            waiting = 0;
        }
    }
    return found;
}

// Returns 1 if the checkpoint has this step and its files pass verification.
static int is_good(const char *folder, int step) {
    char *text = NULL;
    if (zero_checkpoint_verify(folder, NULL, NULL) || zero_checkpoint_text(folder, &text)) return 0;
    json_t *trainer = json_loads(text, 0, NULL);
    const int good = trainer && json_integer_value(json_object_get(trainer, "step")) == step;
    json_decref(trainer);
    free(text);
    return good;
}

static void check_whole(const entry *e, int cut, how style) {
    const node *f = &nodes[e->node];
    if (strcmp(e->name, "summary.json") && (strncmp(e->name, "model_", 6) || !ends_with(e->name, ".bin")))
        return;
    if (f->size != f->whole_bytes || memcmp(f->bytes, f->whole, f->size))
        violation(cut, style, "%s is incomplete", e->name);
}

// Returns the step of the newest save that a run can resume from, or -1.
static int check(const char *root, const names *all, int cut, how style) {
    int newest = -1, ended = ended_before(cut);
    char path[PATH_MAX], out_path[PATH_MAX], model[NAME];
    const int at = find(all, 0, "out"), out = at < 0 ? -1 : all->entries[at].node;
    for (int i = 0; out >= 0 && i < all->n; i++) {
        const entry *e = &all->entries[i];
        int step = step_in(e->name);
        if (e->folder != out) continue;
        check_whole(e, cut, style);
        if (step < 0 || find(all, e->node, "manifest.json") < 0) continue;
        path_below(out_path, root, "out");
        path_below(path, out_path, e->name);
        if (!is_good(path, step))
            violation(cut, style, "%s has a manifest, but is damaged", e->name);
        else if (step > newest)
            newest = step;
    }
    if (newest < ended)
        violation(cut, style, "step %d was saved, but the newest checkpoint found is of step %d", ended,
                  newest);
    snprintf(model, sizeof model, "model_%08d.bin", newest);
    if (newest >= 0 && newest == ended && model_is_promised(cut, newest) && find(all, out, model) < 0)
        violation(cut, style, "%s is missing", model);
    return newest;
}

// -------- all instants

static const char *keep_in;
static int to_keep, kept, built;

static void keep(const char *root, int newest) {
    char path[PATH_MAX], expect[PATH_MAX];
    snprintf(path, sizeof path, "%s/%d", keep_in, kept++);
    if (rename(root, path)) fail("%s: %s", path, strerror(errno));
    path_below(expect, path, "expect");
    FILE *f = fopen(expect, "w");
    if (!f || fprintf(f, "%d\n", newest) < 0 || fclose(f)) fail("%s: %s", expect, strerror(errno));
}

static void build_and_check(const char *scratch, int cut, int number) {
    static const how styles[DRAWS] = { SYNCED,      EVERYTHING, ORDERED,   UNORDERED,
                                       ALL_BUT_ONE, ORDERED,    UNORDERED, ALL_BUT_ONE };
    const how style = styles[number];
    names all = build_names(cut, style);
    for (int i = 0; i < all.n; i++)
        if (!nodes[all.entries[i].node].folder) build_file(all.entries[i].node, cut, style);
    write_folder(scratch, &all, 0);
    int newest = check(scratch, &all, cut, style);
    const int64_t folders = (int64_t)(n_operations + 1) * DRAWS;
    if (keep_in && kept < to_keep && built >= folders * kept / to_keep)
        keep(scratch, newest);
    else
        remove_all(scratch);
    built++;
    free(all.entries);
}

// Checks that replaying the record gives the real folder's contents, so no call bypassed the shim.
static void check_record(const char *root, const names *end) {
    names real = { NULL, 0 };
    int first = n_nodes;
    read_base(&real, root, 0);
    if (real.n != end->n) fail("%s has %d names, but the record has %d", root, real.n, end->n);
    for (int i = 0; i < real.n; i++) {
        const node *f = &nodes[real.entries[i].node];
        if (f->folder) continue;
        int found = 0;
        for (int k = 0; k < end->n && !found; k++) {
            const node *g = &nodes[end->entries[k].node];
            found = !strcmp(end->entries[k].name, real.entries[i].name) && g->whole_bytes == f->base_bytes &&
                    !memcmp(g->whole, f->base, f->base_bytes);
        }
        if (!found) fail("%s: %s differs from the record", root, real.entries[i].name);
    }
    n_nodes = first;
}

static void note_whole_files(void) {
    for (int i = 1; i < n_nodes; i++) {
        node *f = &nodes[i];
        if (f->folder) continue;
        build_file(i, n_operations, EVERYTHING);
        f->whole = must(malloc(f->size + 1));
        memcpy(f->whole, f->bytes ? f->bytes : "", f->size);
        f->whole_bytes = f->size;
    }
}

int main(int argc, char **argv) {
    const char *usage =
        "power_loss RECORD ROOT SEED [--async 1] [--base FOLDER] [--without SYNC]... [--keep FOLDER COUNT]";
    char scratch[PATH_MAX];
    names end;
    if (argc < 4) fail("usage: %s", usage);
    random_state = strtoull(argv[3], NULL, 10);
    new_node(1);
    for (int i = 4; i < argc; i += 2) {
        if (i + 1 == argc) fail("usage: %s", usage);
        if (!strcmp(argv[i], "--async")) async = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--base")) read_base(&base, argv[i + 1], 0);
        if (!strcmp(argv[i], "--without")) without |= 1u << named(argv[i + 1]);
        if (strcmp(argv[i], "--keep")) continue;
        keep_in = argv[i + 1];
        to_keep = atoi(argv[++i + 1]);
    }
    read_record(argv[1], argv[2]);
    follow_run(&end);
    note_whole_files();
    check_record(argv[2], &end);
    snprintf(scratch, sizeof scratch, "%s.built", argv[1]);
    for (int cut = 0; cut <= n_operations; cut++)
        for (int number = 0; number < DRAWS && !(without && violations); number++)
            build_and_check(scratch, cut, number);
    if (async) printf("%d model files were written during steps\n", model_files_during_steps());
    printf("%d instants, %d folders, %d violations\n", n_operations + 1, built, violations);
    return violations ? 1 : 0;
}

// Builds the folders that a power loss could leave at every instant of a run recorded by tests/shim/disk.c,
// and checks that each contains a checkpoint as new as promised.
//   power_loss RECORD ROOT SEED [--async 1] [--base FOLDER] [--without SYNC] [--keep FOLDER COUNT]
//     ROOT       the recorded folder; the run's -o is ROOT/out
//     --async    1: the run used --async-save, so steps continue before a model file is complete
//     --base     the contents of ROOT before the run, all of which are on disk
//     --without  ignores the program's syncs that match this pattern (see is_left_out below). Violations are
//                then expected, and the first one ends the search.
//     --keep     keeps COUNT of the built folders as FOLDER/0, 1, .., and builds one with all operations as
//                RECORD.whole
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
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../llmc_zero/zero.h"
#include "files.h"
#include "shim/record.h"

enum { PAGE = 4096, DRAWS = 8, MOST_NODES = 4096 };

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
    int node;      // the file or folder
    int left_out;  // 1: a sync that --without ignores
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
        *o = (operation){ .node = -1 };
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
    const char *path;  // relative to ROOT
    int node;
} entry;

typedef struct {
    entry *entries;
    int n;
} names;

static int find(const names *all, const char *path) {
    for (int i = 0; i < all->n; i++)
        if (!strcmp(all->entries[i].path, path)) return i;
    return -1;
}

static void put(names *all, const char *path, int node) {
    int i = find(all, path);
    if (i < 0) {
        i = all->n++;
        all->entries = must(realloc(all->entries, all->n * sizeof *all->entries));
    }
    all->entries[i] = (entry){ path, node };
}

static void take_away(names *all, const char *path) {
    int i = find(all, path);
    if (i >= 0) all->entries[i] = all->entries[--all->n];
}

static int new_node(int folder) {
    if (n_nodes == MOST_NODES) fail("too many files");
    nodes[n_nodes] = (node){ .folder = folder };
    return n_nodes++;
}

static names base;
static int base_length;  // of the path of --base

static int add_to_base(const char *path, const struct stat *st, int kind, struct FTW *at) {
    const int number = new_node(kind == FTW_D);  // the first one is ROOT
    put(&base, must(strdup(path + base_length + (at->level > 0))), number);
    if (kind == FTW_F) nodes[number].base = read_file(path, &nodes[number].base_bytes);
    return 0;
}

// A change to one name, or to two if it is a rename.
typedef struct {
    int at;                    // the operation
    const char *path, *other;  // other: a rename's new path, or NULL
    int node;                  // the node that has the new name afterwards; -1: the name is removed
    int synced;                // the operation that puts the change on disk; n_operations: none
} change;

static int async;
static const char *without;
static change *changes;
static int n_changes;

static void apply(names *all, const change *c) {
    if (c->other) {
        int i = find(all, c->path);
        if (i < 0 || all->entries[i].node != c->node) return;  // not created yet, or removed
        take_away(all, c->path);
    }
    if (c->node >= 0)
        put(all, c->other ? c->other : c->path, c->node);
    else
        take_away(all, c->path);
}

// Adds the operation's change to a name, if any, to changes and applies it.
static void note_change(names *now, int at, operation *o) {
    const record_kind kind = o->r.kind;
    const int makes = kind == RECORD_MKDIR || (kind == RECORD_OPEN && o->r.at);
    const int i = o->path ? find(now, o->path) : -1;
    if (i >= 0) o->node = now->entries[i].node;
    if (!makes && kind != RECORD_RENAME && kind != RECORD_UNLINK && kind != RECORD_RMDIR) return;
    if (kind == RECORD_RENAME && nodes[o->node].folder) fail("%s: a folder is renamed", o->path);
    if (makes) o->node = new_node(kind == RECORD_MKDIR);
    const int removes = kind == RECORD_UNLINK || kind == RECORD_RMDIR;
    changes = must(realloc(changes, (n_changes + 1) * sizeof *changes));
    changes[n_changes] = (change){ at, o->path, o->other, removes ? -1 : o->node, n_operations };
    apply(now, &changes[n_changes++]);
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

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int is_manifest(const char *path) { return path && ends_with(path, "/manifest.json"); }

static int is_in(const char *path, const char *folder) {
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? slash - path : 0;
    return n == strlen(folder) && !strncmp(path, folder, n);
}

// Returns 1 if --without ignores the sync. Its text is the path of a file, or "FOLDER after CHANGE PATH": the
// last change of names before a folder's sync reveals its purpose.
static int is_left_out(const operation *sync, const char *path) {
    static const char *const kinds[] = { "create", "", "", "", "rename", "unlink", "mkdir", "rmdir" };
    const change *c = &changes[n_changes - 1];
    char text[3 * PATH_MAX];
    snprintf(text, sizeof text, "%s", path);
    if (nodes[sync->node].folder && n_changes)
        snprintf(text, sizeof text, "%s after %s %s", path, kinds[operations[c->at].r.kind],
                 c->other ? c->other : c->path);
    return without && !fnmatch(without, text, FNM_PATHNAME);
}

// -------- the whole run

// Fills nodes and changes, and finds the sync that puts each change on disk.
static void follow_run(void) {
    names now = copy_of(&base);
    for (int i = 0; i < n_operations; i++) {
        operation *o = &operations[i];
        note_change(&now, i, o);
        if (o->path) continue;
        const operation *opened = opened_for(o);
        o->node = opened->node;
        if (o->r.kind != RECORD_SYNC) continue;
        o->left_out = is_left_out(o, opened->path);
        for (change *c = changes; c < changes + n_changes && !o->left_out; c++)
            if (c->synced > i &&
                (is_in(c->path, opened->path) || (c->other && is_in(c->other, opened->path))))
                c->synced = i;
    }
    free(now.entries);
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
        if (operations[i].node == number && operations[i].r.kind == RECORD_SYNC && !operations[i].left_out)
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

static int concerns(const change *c, const char *path) {
    return path && (!strcmp(c->path, path) || (c->other && !strcmp(c->other, path)));
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
            if (!done[k] &&
                (concerns(&changes[k], changes[i].path) || concerns(&changes[k], changes[i].other)))
                done[i] = 0;
        if (done[i]) apply(&all, &changes[i]);
    }
    free(done);
    return all;
}

// -------- writing the folder

static void path_below(char path[PATH_MAX], const char *folder, const char *name) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) fail("%s: too long", folder);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const entry *)a)->path, ((const entry *)b)->path);
}

// Removes the names from *all whose folder is not on the disk.
static void write_folder(const char *root, names *all) {
    int n = 0;
    qsort(all->entries, all->n, sizeof *all->entries, by_path);
    for (int i = 0; i < all->n; i++) {
        const node *f = &nodes[all->entries[i].node];
        char path[PATH_MAX];
        path_below(path, root, all->entries[i].path);
        const int fd = f->folder ? mkdir(path, 0777) : open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (fd < 0 && errno == ENOENT) continue;
        if (fd < 0 || (!f->folder && (write(fd, f->bytes, f->size) != f->size || close(fd))))
            fail("%s: %s", path, strerror(errno));
        all->entries[n++] = all->entries[i];
    }
    all->n = n;
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

// Returns the step of the checkpoint that the path belongs to; -1: none.
static int step_in(const char *path) {
    int step = -1;
    return sscanf(path, "out/step_%8d", &step) == 1 ? step : -1;
}

// Returns the step of the checkpoint that this operation completes; -1: none.
static int completes(const operation *o) {
    return o->r.kind == RECORD_RENAME && is_manifest(o->other) ? step_in(o->other) : -1;
}

static int opens(const operation *o, const char *name) {
    return o->r.kind == RECORD_OPEN && strstr(o->path, name) != NULL;
}

// Returns the step of the newest save that ended before operation `cut`; -1: none. A save ends when the
// trainer reopens its logs.
static int ended_before(int cut) {
    int saved = -1, ended;
    for (int i = 0; i < base.n; i++)
        if (step_in(base.entries[i].path) > saved) saved = step_in(base.entries[i].path);
    ended = saved;
    for (const operation *o = operations; o < operations + cut; o++) {
        if (completes(o) >= 0) saved = completes(o);
        if (opens(o, ".log") || opens(o, ".jsonl") || opens(o, "/summary")) ended = saved;
    }
    return ended;
}

// Returns 1 if the model file of a save must exist. With --async-save it may be missing until the next save,
// or the end of the run, begins.
static int model_is_promised(int cut, int saved_step) {
    int saved = 0;
    for (int i = 0; async && i < n_operations; i++) {
        const operation *o = &operations[i];
        if (completes(o) == saved_step) saved = 1;
        if (saved && (o->r.kind == RECORD_MKDIR || opens(o, "/summary"))) return i < cut;
    }
    return !saved;
}

// Counts the model files that were completed after further steps had been logged.
static int model_files_during_steps(void) {
    int logged = 0, found = 0;
    for (const operation *o = operations; o < operations + n_operations; o++) {
        if (completes(o) >= 0) logged = 0;
        if (opens(o, ".log")) logged = 1;
        if (o->r.kind == RECORD_RENAME && strstr(o->other, "/model_")) found += logged;
    }
    return found;
}

// Returns 1 if the checkpoint has this step and its files pass verification.
static int is_good(const char *folder, int step) {
    char *text = NULL;
    if (zero_checkpoint_verify(folder, NULL, NULL) || zero_checkpoint_text(folder, &text)) return 0;
    const char *at = strstr(text, "\"step\":");
    const int good = at && atoi(at + strlen("\"step\":")) == step;
    free(text);
    return good;
}

static void check(const char *root, const names *all, int cut, how style) {
    int newest = -1, ended = ended_before(cut);
    char folder[PATH_MAX], model[64];
    for (const entry *e = all->entries; e < all->entries + all->n; e++) {
        const node *f = &nodes[e->node];
        const int is_model = !strncmp(e->path, "out/model_", 10) && ends_with(e->path, ".bin");
        if ((is_model || !strcmp(e->path, "out/summary.json")) &&
            (f->size != f->whole_bytes || memcmp(f->bytes, f->whole, f->size)))
            violation(cut, style, "%s is incomplete", e->path);
        if (!is_manifest(e->path)) continue;
        path_below(folder, root, e->path);
        *strrchr(folder, '/') = 0;
        if (!is_good(folder, step_in(e->path)))
            violation(cut, style, "%s is there, but the checkpoint is damaged", e->path);
        else if (step_in(e->path) > newest)
            newest = step_in(e->path);
    }
    if (newest < ended)
        violation(cut, style, "step %d was saved, but the newest checkpoint found is of step %d", ended,
                  newest);
    snprintf(model, sizeof model, "out/model_%08d.bin", newest);
    if (newest >= 0 && newest == ended && model_is_promised(cut, newest) && find(all, model) < 0)
        violation(cut, style, "%s is missing", model);
}

// -------- all instants

static const char *keep_in;
static int to_keep, kept, built;

static names build(const char *path, int cut, how style) {
    names all = build_names(cut, style);
    for (int i = 0; i < all.n; i++)
        if (!nodes[all.entries[i].node].folder) build_file(all.entries[i].node, cut, style);
    write_folder(path, &all);
    return all;
}

static void build_and_check(const char *scratch, int cut, int number) {
    static const how styles[DRAWS] = { SYNCED,      EVERYTHING, ORDERED,   UNORDERED,
                                       ALL_BUT_ONE, ORDERED,    UNORDERED, ALL_BUT_ONE };
    const how style = styles[number];
    names all = build(scratch, cut, style);
    check(scratch, &all, cut, style);
    if (keep_in && kept < to_keep && built >= (n_operations + 1L) * DRAWS * kept / to_keep) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%d", keep_in, kept++);
        if (rename(scratch, path)) fail("%s: %s", path, strerror(errno));
    } else if (remove_tree(scratch))
        fail("%s: %s", scratch, strerror(errno));
    built++;
    free(all.entries);
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
        "power_loss RECORD ROOT SEED [--async 1] [--base FOLDER] [--without SYNC] [--keep FOLDER COUNT]";
    char scratch[PATH_MAX];
    const char *base_folder = NULL;
    if (argc < 4) fail("usage: %s", usage);
    random_state = strtoull(argv[3], NULL, 10);
    for (int i = 4; i < argc; i += 2) {
        if (i + 1 == argc) fail("usage: %s", usage);
        if (!strcmp(argv[i], "--async")) async = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--base")) base_folder = argv[i + 1];
        if (!strcmp(argv[i], "--without")) without = argv[i + 1];
        if (strcmp(argv[i], "--keep")) continue;
        keep_in = argv[i + 1];
        to_keep = atoi(argv[++i + 1]);
    }
    if (base_folder) {
        base_length = (int)strlen(base_folder);
        if (nftw(base_folder, add_to_base, 8, FTW_PHYS)) fail("%s: %s", base_folder, strerror(errno));
    } else
        put(&base, "", new_node(1));
    read_record(argv[1], argv[2]);
    follow_run();
    note_whole_files();
    snprintf(scratch, sizeof scratch, "%s.whole", argv[1]);
    if (keep_in) free(build(scratch, n_operations, EVERYTHING).entries);
    snprintf(scratch, sizeof scratch, "%s.built", argv[1]);
    for (int cut = 0; cut <= n_operations; cut++)
        for (int number = 0; number < DRAWS && !(without && violations); number++)
            build_and_check(scratch, cut, number);
    if (async) printf("%d model files were written during steps\n", model_files_during_steps());
    printf("%d instants, %d folders, %d violations\n", n_operations + 1, built, violations);
    return violations ? 1 : 0;
}

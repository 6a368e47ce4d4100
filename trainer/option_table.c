// The rows of --help, and which settings they decide.
#include <stdio.h>
#include <string.h>
#include "options.h"

Options opt;
Options default_options;

// In place of a row's help text, range and choices stand those of the plugin's setting.
#define CHOICES(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define KIND_OF(member) \
    _Generic(opt.zero.member, int : INT, int64_t : WIDE, double : REAL, const char * : TEXT, default : CHOICE)

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
Option option_table[] = {
#define GROUP(title) { title, .kind = HEADING },
#define OPTION(name, kind, member, ...) { name, kind, &opt.member, __VA_ARGS__ },
#define SETTING(name, member, ...) \
    { name, KIND_OF(member), &opt.zero.member, .setting = #member, __VA_ARGS__ },
#define FLAG_SETTING(name, member) { name, FLAG, &opt.zero.member, .setting = #member },
#define NO_VALUE(name, kind, text) { name, kind, .help = text },
#include "options.def"
};
const int num_options = sizeof option_table / sizeof *option_table;

// --------
// the settings that options decide

// Whether the option decides this setting, the first `length` bytes of `name`.
static int decides(const Option *o, const char *name, size_t length) {
    for (const char *at = o->setting; at && *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (n == length && !memcmp(at, name, n)) return 1;
        at += n;
    }
    return 0;
}

void options_of_settings(const char *settings, char *options, size_t size) {
    *options = 0;
    for (const char *name = settings; *name; name += strspn(name, " ")) {
        const size_t length = strcspn(name, " ");
        for (const Option *o = option_table; o < option_table + num_options; o++) {
            const size_t used = strlen(options);
            if (!decides(o, name, length)) continue;
            snprintf(options + used, size - used, "%s%s", used ? ", " : "", o->name);
        }
        name += length;
    }
}

const Option *option_of_setting(const char *setting) {
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (decides(o, setting, strlen(setting))) return o;
    return NULL;
}

// The command line: llm.c's letters, and long names for what llm.c lacks.
#ifndef TRAINER_OPTIONS_H
#define TRAINER_OPTIONS_H
#include <stddef.h>
#include <stdio.h>
#include "../../llmc_zero/zero_settings.h"

// One member per row of options.def. take_zero_file stores the settings of --zero-config's file here too, as
// if they were on the command line.
typedef const char *OptionTEXT;
typedef int OptionINT, OptionFLAG;
typedef double OptionREAL;
typedef struct {
#define GROUP(title)
#define OPTION(name, kind, member, ...) Option##kind member;
#define SETTING(name, member, ...)
#define FLAG_SETTING(name, member, ...)
#define NO_VALUE(name, kind, text)
#include "options.def"
    zero_config zero;   // for options that set one setting of the plugin
    int rows_a_step;    // train_batch_size in --zero-config's file; 0: not given
    int micro_batches;  // its gradient_accumulation_steps; 0: not given
} Options;

// Returns 1 if the run answers prompts and trains nothing.
static inline int is_answering(const Options *o) { return o->prompt || o->prompts; }

extern Options opt;
// Returns 1 if prompts are answered one at a time: --prompt, or the lines of standard input.
int prompts_arrive(void);
extern Options default_options;  // opt before the command line was read

// Fills opt from the command line. --help and --version print and end the program. An invalid option ends the
// run.
void parse_options(int argc, char **argv);
// Checks combinations of options, after --zero-config's file has set some of them.
void settle_options(void);
// Writes the options of the command line as JSON, one per line: "NAME=VALUE", or "NAME" if it takes no value.
void write_given_options(FILE *f);

// The table of options, for code that goes through all of them.
typedef enum {
    HEADING,
    TEXT,         // const char *
    FLAG,         // int, set to 1; takes no value on the command line
    INT,          // int
    WIDE,         // int64_t
    REAL,         // double
    CHOICE,       // an enum of the plugin, given as one of its words
    NOTHING_HERE  // accepted without effect
} OptionKind;

typedef struct {
    const char *name;
    OptionKind kind;
    void *value;         // in opt
    const char *preset;  // the default; NULL: 0, or the plugin's
    const char *help;
    double min, max;             // of a number
    const char *setting;         // of zero_config, "trainer.lr", or several separated by blanks
    const char *const *choices;  // the accepted texts; NULL: any
    const zero_setting *plugin;  // if value is in opt.zero; supplies what the row leaves out
    int own;                     // 1: ranks may have different values
    int bits;                    // 1: it changes results, or their last bits; checkpoints store it
    const char *needs;  // options of which one must be set, or with "-y=1" have this value; otherwise this
                        // one has no effect, and giving it is an error
    int given;          // 1: on the command line
} Option;

extern Option option_table[];
extern const int num_options;

// Returns the first option that sets a setting of the plugin, or of the trainer ("trainer.lr"); NULL: none.
const Option *option_of_setting(const char *setting);
// Translates settings from the plugin's errors to options: "start.rank start.ranks" to "-pr, -pn". Leaves out
// settings that have no option.
void options_of_settings(const char *settings, char *options, size_t size);
// Returns the row of an option. An unknown one ends the run.
const Option *option_named(const char *name);
// Returns 1 if the option is on the command line with a value other than "auto".
int option_is_given(const Option *o);
// Writes the option's value in `options`; "" if it has none.
void option_text(const Option *o, const Options *options, char *text, size_t size);
// Returns 1 for INT, WIDE and REAL.
int option_is_number(const Option *o);
// Writes a number option's range: "0 to 3".
void option_range(const Option *o, char *text, size_t size);
// Returns 1 if the value is in range.
int option_can_be(const Option *o, const char *text);
// Sets the option. An invalid value ends the run.
void option_set(const Option *o, const char *text);

#endif

// The command line: llm.c's letters, and long names for what llm.c lacks.
#ifndef TRAINER_OPTIONS_H
#define TRAINER_OPTIONS_H
#include <stddef.h>
#include "../llmc_zero/zero_settings.h"

// A member for each option, which its row in options.def describes. What the file of --zero-config sets
// is taken over as if it had been given here (take_zero_file).
typedef const char *OptionTEXT;
typedef int OptionINT, OptionFLAG;
typedef double OptionREAL;
typedef struct {
#define GROUP(title)
#define OPTION(name, kind, member, ...) Option##kind member;
#define SETTING(name, member, ...)
#define FLAG_SETTING(name, member)
#define NO_VALUE(name, kind, text)
#include "options.def"
    zero_config zero;   // of options that only set a setting of the plugin
    int rows_a_step;    // train_batch_size of the file of --zero-config; 0: not given
    int micro_batches;  // its gradient_accumulation_steps; 0: not given
} Options;

extern Options opt;
extern Options default_options;  // what opt was before the command line

// Fills opt from the command line. --help prints the table and ends the program; a wrong option ends the run.
void parse_options(int argc, char **argv);
// Checks what options say together, once a DeepSpeed file has set some of them.
void settle_options(void);
// Prints, on rank 0 and quoted for a shell, the command with its resume options replaced by -y 1. If the
// command line of the process that started this rank ends with it, as with mpirun, prints that one.
void print_command_to_go_on(int argc, char **argv);

// The table of options, for what goes through all of them.
typedef enum {
    HEADING,
    TEXT,          // value: const char *
    FLAG,          // value: int, set to 1; it takes no value on the command line
    INT,           // value: int
    WIDE,          // value: int64_t
    REAL,          // value: double
    CHOICE,        // value: an enum of the plugin, one of whose words is given
    NOTHING_HERE,  // accepted, without effect
    NOT_BUILT      // only the value `min` is accepted; without help text none is
} OptionKind;

typedef struct {
    const char *name;
    OptionKind kind;
    void *value;         // in opt
    const char *preset;  // the default; NULL: 0, or what the plugin has
    const char *help;
    double min, max;      // of a number
    const char *setting;  // what it decides: of zero_config, "trainer.lr", or several with blanks between
    const char *const *choices;  // the texts that it can be; NULL: any
    const zero_setting *plugin;  // if value is in opt.zero; the setting has what the row leaves out
    int own;                     // 1: ranks may have different values
    int given;                   // the command line has it
} Option;

extern Option option_table[];
extern const int num_options;

// Returns the first option that decides a setting, of the plugin's or "trainer.lr", or NULL if none does.
const Option *option_of_setting(const char *setting);
// Writes the options for settings with blanks between them, as the plugin's errors name them: "-pr, -pn" for
// "start.rank start.ranks". Settings without an option are left out.
void options_of_settings(const char *settings, char *options, size_t size);
// Returns the row of an option that exists.
const Option *option_named(const char *name);
// Returns 1 if the command line has it, with another value than "auto".
int option_is_given(const Option *o);
// Writes what it is set to in `options`, "" if nothing.
void option_text(const Option *o, const Options *options, char *text, size_t size);
// Returns 1 for INT, WIDE and REAL.
int option_is_number(const Option *o);
// Returns 1 if it can have this value.
int option_can_be(const Option *o, const char *text);
// Sets it to a value that it can have.
void option_set(const Option *o, const char *text);

#endif

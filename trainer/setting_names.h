// The plugin's errors name its settings. These are the options of the trainer that they come from.
#ifndef TRAINER_SETTING_NAMES_H
#define TRAINER_SETTING_NAMES_H
#include <stddef.h>

// Writes the options for settings with blanks between them: "-pr, -pn" for "start.rank start.ranks". Settings
// without an option are left out.
void options_of_settings(const char *settings, char *options, size_t size);

// Returns the first option of one setting, of the plugin's or "trainer.lr", or NULL if it has none.
const char *option_of_setting(const char *setting);

#endif

// The settings of zero_create: what they may be.
#ifndef LLMC_ZERO_SETTINGS_SETTINGS_H
#define LLMC_ZERO_SETTINGS_SETTINGS_H
#include "../zero_settings.h"

// 0, or ZERO_ERR_ARGUMENT with the setting that is wrong.
int settings_check(const zero_config *c);
int settings_check_size(const zero_config *c);  // of what a program hands over
// Sets a number or a choice to a value in its range.
void setting_put(const zero_setting *s, zero_config *config, double x);

#endif

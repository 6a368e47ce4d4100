// Checks the settings of zero_create.
#ifndef LLMC_ZERO_SETTINGS_SETTINGS_H
#define LLMC_ZERO_SETTINGS_SETTINGS_H
#include "../zero_settings.h"

// Returns 0, or ZERO_ERR_ARGUMENT with a message that names the invalid setting.
int settings_check(const zero_config *c);
int settings_check_size(const zero_config *c);  // checks only zero_config.size
// Returns the name of the update, "AdamW" or update_name; NULL: it has none.
const char *settings_update(const zero_config *c);
// Returns a number or an enum; 0 for a text.
double setting_get(const zero_setting *s, const zero_config *config);
// Sets a number or an enum; x must be in its range.
void setting_put(const zero_setting *s, zero_config *config, double x);

#endif

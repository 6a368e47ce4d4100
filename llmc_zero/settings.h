// The settings of zero_create: their defaults, and what they may be.
#ifndef LLMC_ZERO_SETTINGS_H
#define LLMC_ZERO_SETTINGS_H
#include "zero.h"

// 0, or ZERO_ERR_ARGUMENT with the setting that is wrong.
int settings_check(const zero_config *c);
// The part of it about the group `offload`.
int settings_check_offload(const zero_config *c);

#endif

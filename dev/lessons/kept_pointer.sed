# The mistake of lesson 7, made in dev/examples/mlp_zero.c: layer_forward asks for each unit's weights once,
# and keeps the pointer beyond the post hook.
s|const float \*w = param(weight, l), \*b|static const float *kept[UNITS];\
    if (!kept[unit]) kept[unit] = param(weight, l);\
    const float *w = kept[unit], *b|

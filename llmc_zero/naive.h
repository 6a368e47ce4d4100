// The reference path that tests compare all others with: see naive.c.
#ifndef LLMC_ZERO_NAIVE_H
#define LLMC_ZERO_NAIVE_H
#include "zero.h"

int naive_reduce(zero *z);
int naive_update(zero *z, const zero_hyper *h, double grad_scale);

#endif

// The best rates of this machine: oneDNN alone and the bandwidth of memory, measured in the same
// run that compares with them.
#pragma once

#include "tests/bench/measured_ops.h"

namespace megascale::bench {

// Returns the best FLOP/s at which oneDNN multiplies matrices of this shape and these types on
// `num_threads` threads. It tries plain row-major operands, each transposition of them, and layouts
// that oneDNN chooses; in fp32 also its sgemm, called for the whole product or by each thread for a
// part of it. The best call of each way counts.
double BestProductRate(const ProductShape& shape, int num_threads);

// As BestProductRate, for the products of attention, [T, D] [D, T] and [T, T] [T, D] for every
// batch and head: FLOP/s of a forward and a backward pass, with its seven products.
double BestAttentionRate(const AttentionShape& shape, int num_threads);

// Returns the bytes per second of the fastest of copying, filling, and the triad a = b + s * c,
// over arrays larger than any cache, with stores that bypass the caches.
double MeasureBandwidth(int num_threads);

// Returns the FLOP/s of the processor's widest fp32 multiply-adds between registers: an upper bound
// of every product in fp32.
double MeasureMultiplyAddRate(int num_threads);

}  // namespace megascale::bench

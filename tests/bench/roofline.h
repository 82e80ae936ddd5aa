// What this machine could do at best: rates of oneDNN alone and bandwidth of memory, measured in
// the run that compares with them.
#pragma once

#include "tests/bench/measured_ops.h"

namespace megascale::bench {

// FLOP/s of the best way in which oneDNN multiplies matrices of this shape and these types on
// `num_threads` threads: plain row-major operands, each transposition of them, and operands in
// layouts of oneDNN's own choice; in fp32 its sgemm too, called for the whole product or by each
// thread for a part of it. The best call of each counts.
double BestProductRate(const ProductShape& shape, int num_threads);

// The same for the products of attention, [T, D] [D, T] and [T, T] [T, D] for every batch and head:
// FLOP/s of a forward and a backward pass, whose seven products it weighs as they occur.
double BestAttentionRate(const AttentionShape& shape, int num_threads);

// Bytes per second of the best of copying, filling, and the triad a = b + s * c, over arrays that
// no cache holds, with stores that go past the caches.
double MeasureBandwidth(int num_threads);

// FLOP/s of fp32 multiply-adds between registers, the widest that the processor has: what no
// product in fp32 can exceed.
double MeasureMultiplyAddRate(int num_threads);

}  // namespace megascale::bench

// A job's measured steps as the table that ByteDance's StragglerAnalysis reads: one row for each
// operation of a rank. A pure function.
//
// That tool knows operations of Megatron-LM. Our operations become its operations: the pieces of a
// backward become one backward-compute, all work of the optimizer becomes one `optimizer`, and the
// exchange of norms becomes optimizer-clip-main-grad. Operations that the tool's dependencies need
// and our steps lack (gc, layernorm-grads-all-reduce, embedding-grads-all-reduce,
// separate-grads-all-reduce) take no time. Loading and the exchanges of tensor-parallel ranks have
// no row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::diagnose {

// The tool's columns. Numbers that do not apply are -1.
struct StragglerRow {
  int dp_rank = 0;
  int tp_rank = 0;
  int stage = 0;
  int rank = 0;
  int64_t step = 0;
  absl::string_view optype = "";  // "forward-compute"
  double start_ts = 0;            // seconds; of a communication: when this rank was ready for it
  double duration = 0;            // seconds, with the wait for peers
  int seq_id = 0;                 // counts the rank's operations of a type within a step
  int mc = -1;                    // chunk within the stage
  int gmc = -1;                   // chunk of the model
  int mb_id = -1;
};

// Returns the rows of all whole steps on the known ranks, by step, rank, type and time. Requires:
// `steps` come from timeline::MeasureSteps with these plans; `known` is by rank.
std::vector<StragglerRow> StragglerRows(absl::Span<const plan::RankPlan> plans,
                                        const std::vector<bool>& known,
                                        absl::Span<const timeline::TimedStep> steps);

// Returns the rows as CSV, the names of the columns first.
std::string ToCsv(absl::Span<const StragglerRow> rows);

}  // namespace megascale::diagnose

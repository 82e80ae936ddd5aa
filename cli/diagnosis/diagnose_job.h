// The diagnosis of a job or of steps: gathers the evidence, asks runtime/diagnose, and puts the
// verdict into words. For `diagnose` and `status`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/diagnosis/diagnosis_text.h"
#include "cli/diagnosis/evidence_source.h"
#include "controlplane/trace/rank_name.h"
#include "nlohmann/json.hpp"
#include "proto/control.pb.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/slow_change.h"
#include "runtime/diagnose/what_if.h"

namespace megascale::cli {

struct Diagnosis {
  Findings findings;
  int rank = -1;        // of the verdict; -1: the verdict names no single rank
  int64_t attempt = 0;  // the attempt in which `rank` was the cause
  std::string node;
  // If the verdict names a machine, a rank on it; if it names a link, the rank at the beginning of
  // the link; otherwise -1.
  int rank_on_node = -1;
  int peer = -1;  // if the verdict names a link: the rank at its other end
  std::string peer_node;
  // Whether the evidence of at most one other machine names the rank.
  bool has_one_witness = false;
  // The job stands still, and the rank that is the cause may become known when its process has been
  // silent for longer.
  bool is_undecided = false;
  absl::Duration sure_in = absl::Milliseconds(700);   // if it is undecided: when to look again
  std::vector<int> stacks_of;                         // ranks whose stacks are worth reading
  std::vector<std::string> notes;                     // about evidence; for standard error
  nlohmann::json details = nlohmann::json::object();  // further members of the JSON
  std::string picture;                                // SVG; "": there is none
};

// Says why steps are slow. `names`: by worker.
Diagnosis DiagnoseSteps(const diagnose::OperationGraph& graph,
                        absl::Span<const diagnose::MeasuredStep> steps,
                        const diagnose::WhatIfOptions& options,
                        absl::Span<const trace::RankName> names,
                        const diagnose::History& history = {});

struct DiagnoseOptions {
  int64_t num_steps = 0;  // number of the job's newest steps
  // In a small job the newest steps are compared with older ones, of this many in all; 0: they are
  // not.
  int64_t num_compared = 100;
  // Approximate limit on the replayed operations; older steps beyond it are left out. The default
  // takes about ten seconds.
  double replayed_max = 5e8;
  // Does not wait for anything. If the analysis would need more than `replayed_max` operations,
  // names the command for it instead.
  bool is_brief = false;
};

// Says why a job is slow or stuck; for a job without running ranks, says what the driver knows.
// Blocking: unless brief, waits up to three seconds more if it cannot tell yet which rank has
// stopped, because the driver learns of a silent process about a second later. Errors: those of
// calls to the driver.
absl::StatusOr<Diagnosis> DiagnoseJob(EvidenceSource* source, const DiagnoseOptions& options);

// `status` does not read the spans of a larger job, because that takes seconds.
inline constexpr int kBriefRanksMax = 256;

// Returns the line that `status` shows for a job: the verdict of a brief diagnosis, or for a large
// job the command that makes a diagnosis. "": the job does not train, or nothing could be read.
std::string BriefVerdict(EvidenceSource* source, const megascale::control::v1::Job& job);

}  // namespace megascale::cli

// Reads the spans of some of a job's ranks, a few at a time, and never of more than
// kSuspectRanksRead ranks, so that a job of any size can be examined. Blocking: reads them from the
// agents. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/trace/job_spans.h"
#include "proto/control.pb.h"

namespace megascale::driver {

class FewRanks {
 public:
  // This many other members of each group of a rank are read, to see whether they wait for the
  // rank.
  static constexpr size_t kMembersRead = 16;

  struct Options {
    int64_t first_step = 0;  // spans of this and later steps are asked for
    // Which of these steps are kept; null: all.
    std::function<bool(int64_t step)> keeps;
  };

  // `ports.emit` gets each message after it was used, and ends the reading if it returns false.
  // `job` outlives the object. Errors: as JobSpans::Create.
  static absl::StatusOr<FewRanks> Create(const megascale::control::v1::Job& job,
                                         SpanStreamPorts ports, Options options);

  // Reads those of the ranks that were not asked before, up to the limit. Returns false if there
  // was no rank to read. Errors: those of SpanStream::Read.
  absl::StatusOr<bool> Read(absl::Span<const int> ranks);

  // What a rank reports of itself, and the coordinates that decide its plan.
  using Standing = std::tuple<int64_t, uint64_t, int, int>;
  Standing StandingOf(int rank) const;
  // Sorts the ranks by how many of them have the same standing, the rarest standing first, because
  // the cause of a stall, or a rank for which the others wait, stands elsewhere than most. One rank
  // of each standing comes before all the others.
  std::vector<int> RarestFirst(std::vector<int> ranks) const;

  // Returns members of the groups of a rank that were not asked, at most kMembersRead of each
  // group.
  std::vector<int> RanksOfGroups(int rank) const;

  bool WasAsked(int rank) const { return asked_.count(rank) > 0; }
  size_t num_asked() const { return asked_.size(); }
  trace::JobSpans& spans() { return spans_; }
  const plan::Mesh& mesh() const { return spans_.plans().front().mesh; }
  // By rank: whether its spans were read.
  std::vector<bool> Known() const;

 private:
  FewRanks(const megascale::control::v1::Job* job, SpanStreamPorts ports, Options options,
           trace::JobSpans spans);

  const megascale::control::v1::Job* job_;
  Options options_;
  SpanStream::Emit emit_;  // of the caller
  SpanStream stream_;
  trace::JobSpans spans_;
  std::set<int> asked_;
};

}  // namespace megascale::driver

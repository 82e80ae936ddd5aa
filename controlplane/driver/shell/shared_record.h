// A job's record for readers, as it was at the end of a round. Most rounds change little of a job
// of thousands of ranks. So its record shares the long lists (one entry for each rank or node) with
// the record before it, and copies only what was added to these lists and all that is small.
// Threads: any; a record never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/shell/shared_list.h"

namespace megascale::driver {

class SharedRecord {
 public:
  // Takes over the record of a job as it is now. `lists`: JobIndex::ListsOf of the job. `before`:
  // the record of an earlier round, which need not outlive this one; null: there is none.
  SharedRecord(const JobRecord& job, int64_t lists, const SharedRecord* before);

  // Returns the record without its placements, preflights, ended ranks and fenced nodes, as long as
  // the job holds slots.
  const JobRecord& Head() const { return head_; }
  // Returns the whole record. It lives as long as this object. Cost: the first call copies it, in
  // the reader's thread.
  const JobRecord& Whole() const;
  // Returns how many elements of the lists were copied when this was made.
  int64_t num_copied() const { return num_copied_; }

 private:
  int64_t lists_ = 0;
  bool has_lists_ = false;  // apart from the head
  JobRecord head_;
  SharedList<megascale::agent::v1::Placement> placements_;
  SharedList<v1::NodePreflight> preflights_;
  SharedList<v1::EndedRank> ended_;
  SharedList<v1::FencedNode> fenced_;
  int64_t num_copied_ = 0;

  mutable std::once_flag once_;
  mutable JobRecord whole_;
};

}  // namespace megascale::driver

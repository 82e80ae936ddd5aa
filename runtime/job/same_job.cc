#include "runtime/job/same_job.h"

#include <google/protobuf/util/message_differencer.h>

#include "runtime/job/deadlines.h"

namespace megascale::job {
namespace {

// A field that does not affect the numerics and whose default changed.
struct ChangedDefault {
  bool (*had_older)(const v1::JobSpec& known);
  bool (*has_present)(const v1::JobSpec& submitted);
  void (*set_present)(v1::JobSpec* spec);
};

// Older versions filled in 60s and 120s, whatever the other one of the two was.
void FillDeadlinesAgain(v1::JobSpec* spec) {
  v1::FaultSpec* fault = spec->mutable_fault();
  if (fault->progress_timeout().seconds() == 60) {
    fault->clear_progress_timeout();
  } else {
    fault->clear_start_timeout();
  }
  FillDeadlines(fault);
}

constexpr ChangedDefault kChangedDefaults[] = {
    // parallel.tp_comm_overlap: true, then false.
    {[](const v1::JobSpec& known) { return known.parallel().tp_comm_overlap(); },
     [](const v1::JobSpec& submitted) { return !submitted.parallel().tp_comm_overlap(); },
     [](v1::JobSpec* spec) { spec->mutable_parallel()->set_tp_comm_overlap(false); }},
    // fault.progress_timeout and fault.start_timeout: in the order of deadlines.h.
    {[](const v1::JobSpec& known) { return !AreInOrder(known.fault()); },
     [](const v1::JobSpec& submitted) { return AreInOrder(submitted.fault()); },
     &FillDeadlinesAgain},
};

}  // namespace

bool IsSameJob(const v1::JobSpec& known, const v1::JobSpec& submitted) {
  v1::JobSpec present = known;
  for (const ChangedDefault& field : kChangedDefaults) {
    if (field.had_older(known) && field.has_present(submitted)) field.set_present(&present);
  }
  return google::protobuf::util::MessageDifferencer::Equals(present, submitted);
}

}  // namespace megascale::job

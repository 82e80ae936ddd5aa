#include "runtime/job/same_job.h"

#include <google/protobuf/util/message_differencer.h>

namespace megascale::job {
namespace {

// A field that does not affect the numerics and whose default changed.
struct ChangedDefault {
  bool (*had_older)(const v1::JobSpec& known);
  bool (*has_present)(const v1::JobSpec& submitted);
  void (*set_present)(v1::JobSpec* spec);
};

constexpr ChangedDefault kChangedDefaults[] = {
    // parallel.tp_comm_overlap: true, then false.
    {[](const v1::JobSpec& known) { return known.parallel().tp_comm_overlap(); },
     [](const v1::JobSpec& submitted) { return !submitted.parallel().tp_comm_overlap(); },
     [](v1::JobSpec* spec) { spec->mutable_parallel()->set_tp_comm_overlap(false); }},
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

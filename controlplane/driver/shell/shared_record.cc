#include "controlplane/driver/shell/shared_record.h"

#include <google/protobuf/util/field_mask_util.h>

namespace megascale::driver {
namespace {

using google::protobuf::FieldMask;
using google::protobuf::util::FieldMaskUtil;

// Returns the fields of a record but for the lists that are as long as the job is large.
const FieldMask& HeadFields() {
  static const auto* fields = [] {
    FieldMask lists;
    for (const char* list : {"placements", "preflights", "ended", "fenced"}) lists.add_paths(list);
    auto* head = new FieldMask();
    FieldMaskUtil::Subtract<JobRecord>(FieldMaskUtil::GetFieldMaskForAllFields<JobRecord>(), lists,
                                       head);
    return head;
  }();
  return *fields;
}

}  // namespace

SharedRecord::SharedRecord(const JobRecord& job, int64_t lists, const SharedRecord* before)
    : lists_(lists), has_lists_(HoldsSlots(job)) {
  if (!has_lists_) {  // it is not touched again, or hardly has lists
    head_ = job;
    num_copied_ =
        job.placements_size() + job.preflights_size() + job.ended_size() + job.fenced_size();
    return;
  }
  FieldMaskUtil::MergeMessageTo(job, HeadFields(), FieldMaskUtil::MergeOptions(), &head_);
  if (before != nullptr && before->has_lists_ && before->lists_ == lists) {
    placements_ = before->placements_;
    preflights_ = before->preflights_;
    ended_ = before->ended_;
    fenced_ = before->fenced_;
  }
  num_copied_ = placements_.Follow(job.placements()) + preflights_.Follow(job.preflights()) +
                ended_.Follow(job.ended()) + fenced_.Follow(job.fenced());
}

const JobRecord& SharedRecord::Whole() const {
  if (!has_lists_) return head_;
  std::call_once(once_, [this] {
    whole_ = head_;
    placements_.AppendTo(whole_.mutable_placements());
    preflights_.AppendTo(whole_.mutable_preflights());
    ended_.AppendTo(whole_.mutable_ended());
    fenced_.AppendTo(whole_.mutable_fenced());
  });
  return whole_;
}

}  // namespace megascale::driver

#include "controlplane/driver/admission/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "controlplane/driver/core/testing/test_core.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

using ::testing::HasSubstr;

// 16 stages: each rank has five streams to each other stage, and 64 further descriptors.
constexpr int kStages = 16;
constexpr int64_t kStreams = 5;

class AdmissionTest : public DriverCoreTest {
 protected:
  static v1::JobSubmitted Wide() {
    job::v1::JobSpec spec = engine::ToyJob("/text", /*data=*/1, /*pipeline=*/1);
    spec.mutable_parallel()->set_pipeline_model_parallel_size(kStages);
    spec.mutable_model()->set_num_hidden_layers(kStages);
    spec.mutable_train()->set_global_batch_size(2 * kStages);
    return Submitted("wide", job::ResolveJobSpec(spec).value()).job_submitted();
  }
  void JoinWith(const std::string& node_id, int num_slots, int64_t descriptors,
                int64_t memory_bytes = 0) {
    Event event = Joined(node_id, "a", num_slots);
    auto* resources = event.mutable_node_joined()->mutable_hello()->mutable_resources();
    resources->set_descriptors(descriptors);
    resources->set_memory_bytes(memory_bytes);
    resources->set_memory_source("a test");
    Do(std::move(event));
  }
  absl::Status Check() const { return CheckExchanges(state_, Wide()); }
};

TEST_F(AdmissionTest, ARankThatNeedsMoreDescriptorsThanItsNodeAllowsIsRefusedWithGroupAndSum) {
  constexpr int64_t kNeeded = kStreams * 8 + 64;
  JoinWith("n0", 8, kNeeded - 1);
  JoinWith("n1", 8, kNeeded);
  const absl::Status refused = Check();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("node n0: descriptors: rank 0 needs 40 (pipeline group of 16 ranks) + 64 "
                        "(the process) = 104, for its connections to other machines; the limit is "
                        "103;"));
  JoinWith("a0", 16, 70);  // takes all ranks, which then have no connections
  EXPECT_EQ(Check(), absl::OkStatus());
}

TEST_F(AdmissionTest, NodesThatHaveEnoughTakeThePlaceOfThoseThatHaveNot) {
  JoinWith("n0", 8, 100);
  JoinWith("n1", 8, 1024);
  EXPECT_FALSE(Check().ok());
  JoinWith("n2", 4, 1024);
  EXPECT_FALSE(Check().ok()) << "12 slots are too few";
  JoinWith("n3", 4, 1024);
  EXPECT_EQ(Check(), absl::OkStatus());
}

TEST_F(AdmissionTest, RingsThatNeedMoreMemoryThanTheNodeHasAreRefusedWithGroupAndSum) {
  JoinWith("n0", 8, 0, int64_t{1} << 40);
  JoinWith("n1", 8, 0, 64 << 10);
  const absl::Status refused = Check();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  for (const char* part : {"node n1: memory: the rings of the 8 ranks of this machine need ",
                           "(pipeline groups of 16 ranks) + ",
                           "64.0 KiB of 64.0 KiB are left by a "
                           "test"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
}

TEST_F(AdmissionTest, WhatIsNotKnownRefusesNothing) {
  EXPECT_EQ(Check(), absl::OkStatus()) << "no node";
  JoinWith("n0", 8, 70);
  EXPECT_EQ(Check(), absl::OkStatus()) << "too few slots: the job waits";
  Do(Joined("n1", "a", 8));
  EXPECT_FALSE(Check().ok()) << "n0 tells its limit";
  Do(Joined("n2", "a", 8));
  EXPECT_EQ(Check(), absl::OkStatus()) << "n1 and n2 do not";
}

TEST_F(AdmissionTest, SlotsThatAnotherJobHasCount) {
  JoinWith("n0", 8, 1024);
  JoinWith("n1", 8, 1024);
  Do(Submitted("j", SpecOf(2, 2, 30)));
  EXPECT_EQ(Check(), absl::OkStatus());
  JoinWith("n2", 8, 70);
  EXPECT_EQ(Check(), absl::OkStatus()) << "n0 and n1, once j has ended";
}

}  // namespace
}  // namespace megascale::driver

// Overlapping communication with computation changes the timing, never the bits.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "proto/job.pb.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"

namespace megascale::engine {
namespace {

using job::v1::ParallelSpec;

struct Layout {
  int data = 2;
  int tensor = 1;
  int virtual_stages = 1;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
};

class OverlapTest : public testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(
    Layouts, OverlapTest,
    testing::Values(Layout{.virtual_stages = 2,
                           .schedule = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B},
                    Layout{.schedule = job::v1::PIPELINE_SCHEDULE_ZB_H1},
                    Layout{.data = 1, .tensor = 2},
                    Layout{.data = 1, .tensor = 2, .schedule = job::v1::PIPELINE_SCHEDULE_ZB_H1}));

TEST_P(OverlapTest, EachSwitchLeavesTheBits) {
  const auto digest = [&](const std::function<void(ParallelSpec&)>& change) {
    job::v1::JobSpec spec = ToyJob(WriteTestText("text"), GetParam().data, 2);
    spec.mutable_parallel()->set_tensor_model_parallel_size(GetParam().tensor);
    spec.mutable_model()->set_num_hidden_layers(4);
    spec.mutable_train()->set_steps(5);
    spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(GetParam().virtual_stages);
    spec.mutable_parallel()->set_pipeline_schedule(GetParam().schedule);
    change(*spec.mutable_parallel());
    return RunJob(RunOptions(job::ResolveJobSpec(spec).value())).digest;
  };
  const std::string expected = digest([](ParallelSpec&) {});
  EXPECT_EQ(digest([](ParallelSpec& parallel) { parallel.set_overlap_grad_reduce(false); }),
            expected);
  EXPECT_EQ(digest([](ParallelSpec& parallel) { parallel.set_overlap_param_gather(false); }),
            expected);
  EXPECT_EQ(digest([](ParallelSpec& parallel) { parallel.set_overlap_p2p_communication(false); }),
            expected);
  EXPECT_EQ(digest([](ParallelSpec& parallel) { parallel.set_tp_comm_overlap(true); }), expected);
  EXPECT_EQ(digest([](ParallelSpec& parallel) { parallel.set_tp_comm_overlap(false); }), expected);
  EXPECT_EQ(digest([](ParallelSpec& parallel) {
              parallel.set_overlap_grad_reduce(false);
              parallel.set_overlap_param_gather(false);
              parallel.set_overlap_p2p_communication(false);
              parallel.set_tp_comm_overlap(false);
            }),
            expected);
}

}  // namespace
}  // namespace megascale::engine

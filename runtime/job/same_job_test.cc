#include "runtime/job/same_job.h"

#include "gtest/gtest.h"
#include "runtime/job/job_spec.h"

namespace megascale::job {
namespace {

v1::JobSpec SmallSpec() {
  v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_hidden_size(64);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_data()->add_files("/usr/share/games/fortunes");
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_seq_length(32);
  spec.mutable_train()->set_global_batch_size(8);
  spec.mutable_train()->set_micro_batch_size(2);
  return spec;
}

TEST(SameJobTest, AResolvedSpecificationRepeatsItself) {
  const v1::JobSpec spec = ResolveJobSpec(SmallSpec()).value();
  EXPECT_TRUE(IsSameJob(spec, spec));
  v1::JobSpec longer = spec;
  longer.mutable_train()->set_steps(11);
  EXPECT_FALSE(IsSameJob(spec, longer));
}

TEST(SameJobTest, ADefaultOfAnOlderVersionMakesNoOtherJob) {
  const v1::JobSpec submitted = ResolveJobSpec(SmallSpec()).value();
  v1::JobSpec known = submitted;
  known.mutable_parallel()->clear_tp_comm_overlap();
  UpgradeJobSpec(&known);
  ASSERT_TRUE(known.parallel().tp_comm_overlap()) << "what the older version did";
  EXPECT_TRUE(IsSameJob(known, submitted));
  known.mutable_train()->set_seed(7);
  EXPECT_FALSE(IsSameJob(known, submitted)) << "another seed remains another job";
}

// Older versions did not fit the two defaults to each other.
TEST(SameJobTest, ADeadlineThatAnOlderVersionFilledInMakesNoOtherJob) {
  for (const bool gives_start : {true, false}) {
    v1::JobSpec spec = SmallSpec();
    v1::FaultSpec& fault = *spec.mutable_fault();
    gives_start ? fault.mutable_start_timeout()->set_seconds(20)
                : fault.mutable_progress_timeout()->set_seconds(300);
    const v1::JobSpec submitted = ResolveJobSpec(spec).value();
    v1::JobSpec known = submitted;
    gives_start ? known.mutable_fault()->mutable_progress_timeout()->set_seconds(60)
                : known.mutable_fault()->mutable_start_timeout()->set_seconds(120);
    EXPECT_TRUE(IsSameJob(known, submitted)) << gives_start;
    known.mutable_train()->set_seed(7);
    EXPECT_FALSE(IsSameJob(known, submitted)) << gives_start;
  }
}

TEST(SameJobTest, AskingForAnotherValueThanTheDefaultMakesAnotherJob) {
  const v1::JobSpec known = ResolveJobSpec(SmallSpec()).value();
  v1::JobSpec submitted = known;
  submitted.mutable_parallel()->set_tp_comm_overlap(true);
  EXPECT_FALSE(IsSameJob(known, submitted));
}

}  // namespace
}  // namespace megascale::job

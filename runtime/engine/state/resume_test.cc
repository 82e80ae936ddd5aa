#include "runtime/engine/state/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/numerics.h"

namespace megascale::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() {
    spec_.mutable_train()->set_steps(20);
    spec_.mutable_train()->set_seq_length(64);
    spec_.mutable_train()->set_global_batch_size(4);
    spec_.mutable_optimizer()->set_lr(3e-3);
    spec_.mutable_optimizer()->set_min_lr(3e-4);
    data_.set_total_bytes(1000);
    manifest_.set_step(10);
    manifest_.set_next_sample(40);
    *manifest_.mutable_spec() = spec_;
    *manifest_.mutable_data() = data_;
    *manifest_.mutable_numerics() = checkpoint::MakeNumericsFingerprint(spec_, "avx2");
  }

  absl::StatusOr<ResumePlace> Resume(std::vector<std::string> allowed = {}) const {
    const auto numerics = checkpoint::MakeNumericsFingerprint(spec_, "avx2");
    return PlaceToResume(manifest_, {.spec = &spec_,
                                     .data = &data_,
                                     .numerics = &numerics,
                                     .allow_changed = std::move(allowed)});
  }

  checkpoint::v1::Manifest manifest_;
  job::v1::JobSpec spec_;
  checkpoint::v1::DataFingerprint data_;
};

TEST_F(ResumeTest, TheSameJobGoesOnWithoutAWord) {
  const auto place = Resume();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->step, 10);
  EXPECT_EQ(place->sample_offset, 0);
  EXPECT_THAT(place->warnings, IsEmpty());
}

TEST_F(ResumeTest, AJobThatBeganWithOtherBatchesKeepsItsPlace) {
  manifest_.set_next_sample(56);
  const auto place = Resume();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->sample_offset, 16);
  EXPECT_THAT(place->warnings, IsEmpty());
}

TEST_F(ResumeTest, OtherBatchesBeginAtTheNextSample) {
  for (const int batch : {8, 2}) {
    spec_.mutable_train()->set_global_batch_size(batch);
    EXPECT_THAT(std::string(Resume().status().message()),
                HasSubstr("batch.global_batch_size was 4, is "));
    const auto place = Resume({"batch"});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(10 * batch + place->sample_offset, 40);
    EXPECT_THAT(place->warnings, ElementsAre(HasSubstr(
                                     ": step 11 begins at sample 40, the first that the checkpoint "
                                     "has not trained on")));
  }
}

TEST_F(ResumeTest, SamplesOfAnotherOrderAreSaid) {
  spec_.mutable_train()->set_seq_length(128);
  auto place = Resume({"batch"});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->sample_offset, 0);
  EXPECT_THAT(place->warnings,
              ElementsAre(AllOf(HasSubstr("train.seq_length was 64, is 128: samples are other "
                                          "pieces of the text; step 11 begins at sample 40"))));
  spec_ = manifest_.spec();
  spec_.mutable_train()->set_seed(9);
  data_.set_total_bytes(2000);
  place = Resume({"all"});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->warnings,
              ElementsAre(HasSubstr("train.seed was 0, is 9, the data changed: samples are")));
}

TEST_F(ResumeTest, AnotherNumberOfStepsMovesTheLearningRateOnlyWhereThatIsAllowed) {
  spec_.mutable_train()->set_steps(40);
  EXPECT_EQ(Resume({"batch", "data"}).status(),
            absl::FailedPreconditionError(
                "the checkpoint was made under other conditions: the learning rate of step 11 was "
                "0.001439, is 0.002527 (train.steps was 20, is 40); restore them, or go on with "
                "other bits by --allow-changed optimizer"));
  const auto place = Resume({"optimizer"});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->warnings, ElementsAre("the learning rate of step 11 was 0.001439, is 0.002527 "
                                           "(train.steps was 20, is 40)"));
  spec_.mutable_train()->set_steps(15);
  EXPECT_THAT(std::string(Resume().status().message()), HasSubstr("(train.steps was 20, is 15)"));
  spec_.mutable_optimizer()->set_lr(4e-3);
  EXPECT_THAT(std::string(Resume().status().message()),
              HasSubstr("optimizer.lr was 0.003, is 0.004"));
}

// The next step is one of the warm-up; the decay comes later than it would have.
TEST_F(ResumeTest, AChangeOfLaterRatesIsSaid) {
  spec_.mutable_optimizer()->set_warmup_steps(15);
  *manifest_.mutable_spec() = spec_;
  *manifest_.mutable_numerics() = checkpoint::MakeNumericsFingerprint(spec_, "avx2");
  spec_.mutable_train()->set_steps(40);
  const auto place = Resume();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->warnings,
              ElementsAre(AllOf(HasSubstr("the learning rate of step 16 was 0.002742, is 0.00"),
                                HasSubstr("(train.steps was 20, is 40)"))));
}

TEST_F(ResumeTest, AnotherScheduleIsRefusedWhereItMovesTheNextLearningRate) {
  spec_.mutable_optimizer()->set_schedule(job::v1::SCHEDULE_CONSTANT);
  EXPECT_THAT(std::string(Resume().status().message()),
              HasSubstr("the learning rate of step 11 was 0.001439, is 0.003 (optimizer.schedule "
                        "was cosine, is constant); restore them"));
  EXPECT_TRUE(Resume({"optimizer"}).ok());
  spec_.mutable_optimizer()->set_schedule(job::v1::SCHEDULE_COSINE);
  EXPECT_TRUE(Resume().ok()) << "it is the default";
}

// The decay begins after step 15: until then the job may be prolonged, and decay for longer.
TEST_F(ResumeTest, AStableLearningRateGoesOnWhateverComesLater) {
  spec_.mutable_optimizer()->set_schedule(job::v1::SCHEDULE_WSD);
  spec_.mutable_optimizer()->set_decay_steps(5);
  *manifest_.mutable_spec() = spec_;
  spec_.mutable_optimizer()->set_decay_steps(8);
  const auto place = Resume();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->warnings, ElementsAre(AllOf(HasSubstr("the learning rate of step 13 was"),
                                                 HasSubstr("optimizer.decay_steps was 5, is 8"))));
  spec_.mutable_optimizer()->set_decay_steps(10);
  EXPECT_THAT(std::string(Resume().status().message()),
              HasSubstr("the learning rate of step 11 was 0.003, is 0.00273 "
                        "(optimizer.decay_steps was 5, is 10)"));
}

// The schedule had ended.
TEST_F(ResumeTest, AFinishedJobThatIsProlongedWouldJumpToAHigherRate) {
  manifest_.set_step(20);
  manifest_.set_next_sample(80);
  spec_.mutable_train()->set_steps(21);
  EXPECT_TRUE(Resume().ok()) << "its one step has the lowest rate, as before";
  spec_.mutable_train()->set_steps(60);
  EXPECT_THAT(std::string(Resume().status().message()),
              HasSubstr("the learning rate of step 21 was 0.0003, is 0.00"));
}

TEST_F(ResumeTest, MoreStepsAtAConstantRateAreTheSameTraining) {
  spec_.mutable_optimizer()->set_min_lr(3e-3);
  *manifest_.mutable_spec() = spec_;
  *manifest_.mutable_numerics() = checkpoint::MakeNumericsFingerprint(spec_, "avx2");
  spec_.mutable_train()->set_steps(2000);
  const auto place = Resume();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->warnings, IsEmpty());
}

TEST_F(ResumeTest, RefusesWeightsAloneAndTooManySteps) {
  spec_.mutable_train()->set_steps(9);
  EXPECT_EQ(Resume().status(),
            absl::FailedPreconditionError(
                "has completed 10 steps, more than train.steps = 9; raise train.steps"));
  manifest_.set_kind(checkpoint::v1::CHECKPOINT_KIND_WEIGHTS);
  EXPECT_THAT(std::string(Resume().status().message()), HasSubstr("holds weights alone"));
}

}  // namespace
}  // namespace megascale::engine

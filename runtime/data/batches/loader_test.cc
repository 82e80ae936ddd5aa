#include "runtime/data/batches/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/data/batches/document_begins.h"

namespace megascale::data {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string path = absl::StrCat(::testing::TempDir(), "/", info->name(), ".txt");
    std::ofstream file(path);
    for (int i = 0; i < 1000; ++i) file << "line " << i << ";";
    file.close();
    spec_.mutable_data()->add_files(path);
    spec_.mutable_model()->set_vocab_size(256);
    spec_.mutable_train()->set_seq_length(16);
    spec_.mutable_train()->set_global_batch_size(12);
    spec_.mutable_train()->set_micro_batch_size(2);
    spec_.mutable_train()->set_seed(5);
    corpus_ = Corpus::Open(spec_.data(), 16).value();
    text_ = std::make_unique<ByteText>(corpus_->train());
    SetSources({{text_.get()}});
  }

  void SetSources(const std::vector<Samples::Source>& sources) {
    samples_ = std::make_unique<Samples>(5, 16, sources);
  }

  void SetDataParallelSize(int size) { spec_.mutable_parallel()->set_data_parallel_size(size); }

  BatchRingShape Shape(std::vector<int> indices) const {
    BatchRingShape shape;
    shape.data_parallel_indices = std::move(indices);
    shape.num_microbatches = spec_.train().global_batch_size() /
                             spec_.parallel().data_parallel_size() /
                             spec_.train().micro_batch_size();
    shape.micro_batch_size = spec_.train().micro_batch_size();
    shape.seq_length = spec_.train().seq_length();
    shape.num_readers = 1;
    return shape;
  }

  static std::unique_ptr<base::SharedMemory> MakeRing(const BatchRingShape& shape, int64_t first) {
    auto region = base::SharedMemory::Create("loader_test", BatchRingBytes(shape)).value();
    FormatBatchRing(*region, shape, first);
    return region;
  }

  // Adds the samples of steps first_step + 1 to last_step, by global index, as one machine's loader
  // delivers them.
  void Collect(const BatchRingShape& shape, int64_t first_step, int64_t last_step,
               std::map<int64_t, std::string>* samples) {
    auto region = MakeRing(shape, first_step);
    std::atomic<bool> stop = false;
    std::thread thread([&] {
      auto loader = BatchLoader::Create(spec_, samples_.get(), region.get(),
                                        {.sample_offset = sample_offset_})
                        .value();
      EXPECT_TRUE(loader->RunUntil(stop, last_step).ok());
    });
    auto reader = BatchRingReader::Create(region.get(), 0).value();
    for (int64_t step = first_step + 1; step <= last_step; ++step) {
      const auto batch = reader.Wait(step, kPatience);
      EXPECT_TRUE(batch.ok()) << batch.status();
      if (!batch.ok()) break;
      AddSamples(step, *batch, samples);
      reader.Release(step);
    }
    stop = true;
    thread.join();
  }

  void AddSamples(int64_t step, const BatchView& batch, std::map<int64_t, std::string>* samples) {
    for (const int dp : batch.shape().data_parallel_indices) {
      for (int microbatch = 0; microbatch < batch.shape().num_microbatches; ++microbatch) {
        for (int index = 0; index < batch.shape().micro_batch_size; ++index) {
          const auto tokens = batch.sample(dp, microbatch, index);
          const int64_t global = GlobalSample(spec_, {step, dp, microbatch, index, sample_offset_});
          EXPECT_TRUE(samples->emplace(global, std::string(tokens.begin(), tokens.end())).second);
        }
      }
    }
  }

  // As a job with other batches, which begins where the first `completed` steps ended, and trains
  // for `num_steps`. Returns its completed steps.
  int64_t GoOn(int64_t completed, int batch, int num_steps,
               std::map<int64_t, std::string>* samples) {
    const int64_t next = NextSample(spec_, completed, sample_offset_);
    spec_.mutable_train()->set_global_batch_size(batch);
    sample_offset_ = next - completed * batch;
    EXPECT_EQ(NextSample(spec_, completed, sample_offset_), next);
    Collect(Shape({0}), completed, completed + num_steps, samples);
    return completed + num_steps;
  }

  job::v1::JobSpec spec_;
  int64_t sample_offset_ = 0;
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<TokenText> text_;
  std::unique_ptr<Samples> samples_;
};

TEST_F(LoaderTest, SamplesAreTheWindowsOfTheOrder) {
  SetDataParallelSize(1);
  std::map<int64_t, std::string> samples;
  Collect(Shape({0}), 0, 3, &samples);
  ASSERT_EQ(samples.size(), 36u);
  const SampleOrder order(5, corpus_->train().size_bytes(), 16);
  for (const auto& [global, text] : samples) {
    std::string expected(17, '\0');
    ASSERT_TRUE(corpus_->train()
                    .Read(order.WindowStart(global),
                          absl::MakeSpan(reinterpret_cast<uint8_t*>(expected.data()), 17))
                    .ok());
    EXPECT_EQ(text, expected) << global;
  }
}

TEST_F(LoaderTest, EveryLayoutTrainsOnTheSameSamplesInEveryStep) {
  SetDataParallelSize(1);
  std::map<int64_t, std::string> alone;
  Collect(Shape({0}), 0, 4, &alone);
  EXPECT_EQ(alone.begin()->first, 0);
  EXPECT_EQ(alone.rbegin()->first, 47);
  SetDataParallelSize(3);
  std::map<int64_t, std::string> on_two_machines;
  Collect(Shape({1}), 0, 4, &on_two_machines);
  Collect(Shape({0, 2}), 0, 4, &on_two_machines);
  EXPECT_EQ(on_two_machines, alone);
}

TEST_F(LoaderTest, AResumedLoaderDeliversWhatAnUndisturbedOneDoes) {
  SetDataParallelSize(2);
  std::map<int64_t, std::string> undisturbed;
  Collect(Shape({0, 1}), 0, 6, &undisturbed);
  std::map<int64_t, std::string> resumed;
  Collect(Shape({0, 1}), 0, 2, &resumed);
  Collect(Shape({0, 1}), 2, 6, &resumed);
  EXPECT_EQ(resumed, undisturbed);
}

TEST_F(LoaderTest, AMixtureIsTheSameInEveryLayoutAndAfterAResume) {
  const ByteText head(corpus_->held_out());
  SetSources({{text_.get(), 3}, {&head, 1}, {text_.get(), 0.5}});
  SetDataParallelSize(1);
  std::map<int64_t, std::string> calm;
  Collect(Shape({0}), 0, 6, &calm);
  SetDataParallelSize(3);
  std::map<int64_t, std::string> resumed;
  Collect(Shape({0, 1}), 0, 4, &resumed);
  Collect(Shape({2}), 0, 2, &resumed);
  Collect(Shape({2}), 2, 4, &resumed);
  SetDataParallelSize(2);
  Collect(Shape({0, 1}), 4, 6, &resumed);
  EXPECT_EQ(resumed, calm);
}

// Several epochs of the smallest source, larger and smaller batches in turn, and a restart of the
// job in the middle of each.
TEST_F(LoaderTest, OtherBatchesGoOnAtTheNextSample) {
  const ByteText small(corpus_->held_out());
  SetSources({{text_.get(), 3}, {&small, 1}, {&small, 2}});
  SetDataParallelSize(1);
  std::map<int64_t, std::string> calm;
  Collect(Shape({0}), 0, 30, &calm);
  std::map<int64_t, std::string> resumed;
  int64_t completed = GoOn(0, 12, 2, &resumed);
  completed = GoOn(completed, 4, 3, &resumed);
  completed = GoOn(completed, 4, 4, &resumed);
  completed = GoOn(completed, 60, 2, &resumed);
  completed = GoOn(completed, 2, 8, &resumed);
  completed = GoOn(completed, 86, 2, &resumed);
  EXPECT_EQ(completed, 21);
  EXPECT_EQ(sample_offset_, 360 - 21 * 86);
  EXPECT_EQ(resumed, calm) << "every sample once";
}

TEST_F(LoaderTest, StopEndsALoaderThatWaitsForAReader) {
  SetDataParallelSize(1);
  auto region = MakeRing(Shape({0}), 0);
  auto loader = BatchLoader::Create(spec_, samples_.get(), region.get()).value();
  std::atomic<bool> stop = false;
  std::thread thread([&] { EXPECT_TRUE(loader->RunUntil(stop, 1000).ok()); });
  auto reader = BatchRingReader::Create(region.get(), 0).value();
  EXPECT_TRUE(reader.Wait(2, kPatience).ok());
  stop = true;
  thread.join();
  EXPECT_EQ(reader.Wait(3, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LoaderTest, ReadersLearnWhichTokenEndsADocument) {
  SetDataParallelSize(1);
  for (const int32_t end_token : {-1, 7}) {
    auto region = MakeRing(Shape({0}), 0);
    const std::atomic<bool> stop = false;
    auto loader =
        BatchLoader::Create(spec_, samples_.get(), region.get(), {.end_token = end_token}).value();
    EXPECT_TRUE(loader->RunUntil(stop, 1).ok());
    const auto reader = BatchRingReader::Create(region.get(), 0).value();
    EXPECT_TRUE(reader.Wait(1, kPatience).ok());
    EXPECT_EQ(reader.end_token(), end_token);
  }
}

// Token i is i.
class CountingText : public TokenText {
 public:
  explicit CountingText(int64_t num_tokens) : num_tokens_(num_tokens) {}
  int64_t num_tokens() const override { return num_tokens_; }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
    return absl::OkStatus();
  }

 private:
  const int64_t num_tokens_;
};

// Windows have the order of samples: replica 1's first window is number 6 of 12.
TEST_F(LoaderTest, EveryEvaluationHasTheWindowsFromTheBeginningOfTheHeldOutText) {
  SetDataParallelSize(2);
  const CountingText held_out(20 * 16 + 1);  // 20 windows: one batch, and a part of another
  auto region = MakeRing(Shape({0, 1}), 0);
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    auto loader = BatchLoader::Create(spec_, samples_.get(), region.get()).value();
    loader->PublishEvaluations(&held_out, /*interval=*/2, /*batches_max=*/5);
    EXPECT_TRUE(loader->RunUntil(stop, 3).ok());
  });
  auto reader = BatchRingReader::Create(region.get(), 0).value();
  std::vector<int> num_windows;  // by batch of the ring
  for (int64_t number = 1; number <= 7; ++number) {
    const auto batch = reader.Wait(number, kPatience);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const bool evaluates = number == 3 || number == 4 || number == 6 || number == 7;
    const int64_t first = number == 4 || number == 7 ? 12 : 0;
    num_windows.push_back(0);
    for (int sample = 0; sample < 12 && evaluates; ++sample) {
      const auto tokens = batch->sample(sample / 6, sample % 6 / 2, sample % 2);
      if (tokens[0] == kNoToken) continue;
      ++num_windows.back();
      EXPECT_EQ(tokens[0], (first + sample) * 16);
      EXPECT_EQ(tokens[16], (first + sample + 1) * 16);
    }
    reader.Release(number);
  }
  EXPECT_EQ(num_windows, (std::vector<int>{0, 0, 12, 8, 0, 12, 8}));
  thread.join();
}

TEST(DocumentBeginsTest, AnEndTokenBelongsToTheDocumentThatItEnds) {
  const std::vector<int32_t> tokens = {4, 9, 5, 6, 9, 9, 7};
  std::vector<int32_t> begins(tokens.size());
  FindDocumentBegins(tokens, 9, absl::MakeSpan(begins));
  EXPECT_EQ(begins, (std::vector<int32_t>{0, 0, 2, 2, 2, 5, 6}));
  FindDocumentBegins(tokens, 3, absl::MakeSpan(begins));
  EXPECT_EQ(begins, std::vector<int32_t>(tokens.size()));
}

TEST_F(LoaderTest, ARingOfAnotherJobIsRefused) {
  SetDataParallelSize(2);
  BatchRingShape shape = Shape({0, 2});
  auto ring = MakeRing(shape, 0);
  EXPECT_EQ(BatchLoader::Create(spec_, samples_.get(), ring.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
  shape = Shape({0});
  shape.seq_length = 32;
  ring = MakeRing(shape, 0);
  EXPECT_EQ(BatchLoader::Create(spec_, samples_.get(), ring.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(LoaderTest, AShrunkenFileStopsTheLoaderWithDataLoss) {
  SetDataParallelSize(1);
  auto ring = MakeRing(Shape({0}), 0);
  auto loader = BatchLoader::Create(spec_, samples_.get(), ring.get()).value();
  std::filesystem::resize_file(spec_.data().files(0), 1);
  const std::atomic<bool> stop = false;
  EXPECT_EQ(loader->RunUntil(stop, 1).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::data

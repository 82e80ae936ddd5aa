#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/minder/aligned_series.h"
#include "runtime/minder/denoiser.h"
#include "runtime/minder/detector.h"
#include "runtime/minder/distance.h"
#include "runtime/minder/examine.h"
#include "runtime/minder/lstm_vae.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"
#include "runtime/minder/testing/fault_generator.h"
#include "runtime/minder/training.h"

namespace megascale::minder {
namespace {

using ::testing::ElementsAre;

// --- alignment --------------------------------------------------------------------------------

TEST(AlignTest, AMissingSecondGetsTheNearestSample) {
  const std::vector<Sample> samples = {{100, 0}, {103, 5}, {104, 10}};
  EXPECT_THAT(Align(samples, {0, 10}, 99, 8), ElementsAre(0, 0, 0, 0.5, 0.5, 1, 1, 1));
}

TEST(AlignTest, OfTwoEquallyNearSamplesTheEarlierCounts) {
  const std::vector<Sample> samples = {{0, 1}, {2, 0}};
  EXPECT_THAT(Align(samples, {0, 1}, 0, 3), ElementsAre(1, 1, 0));
}

TEST(AlignTest, SamplesOfAClockThatWentBackAreSorted) {
  const std::vector<Sample> samples = {{2, 1}, {0, 0}, {NAN, 0.3}, {1, 0.5}};
  EXPECT_THAT(Align(samples, {0, 1}, 0, 3), ElementsAre(0, 0.5, 1));
}

TEST(AlignTest, AnOpenLimitIsRaisedToTheLargestValue) {
  const std::vector<std::vector<Sample>> machines = {{{0, 3}}, {{0, INFINITY}, {1, 7}}};
  EXPECT_EQ(Raised({0, 5}, machines).upper, 7);
  EXPECT_EQ(Raised({0, 9}, machines).upper, 9);
}

TEST(AlignTest, ValuesBeyondTheLimitsCountAsTheLimitAndOthersAreLeftOut) {
  const std::vector<Sample> samples = {{0, -5}, {1, 50}, {2, NAN}};
  EXPECT_THAT(Align(samples, {0, 10}, 0, 3), ElementsAre(0, 1, 1));
  EXPECT_THAT(Align({}, {0, 10}, 0, 2), ElementsAre(0, 0));
}

// --- the model --------------------------------------------------------------------------------

TEST(LstmVaeTest, TheGradientIsThatOfTheLoss) {
  LstmVae model = LstmVae::Create(3);
  const Window window = {0.1f, 0.9f, 0.4f, 0.3f, 0.8f, 0.2f, 0.5f, 0.6f};
  const std::array<double, kLatent> noise = {0.3, -1.2, 0.8, 0.1, -0.4, 1.5, -0.9, 0.6};
  constexpr double kKl = 0.05;
  std::vector<double> gradient(LstmVae::kNumWeights);
  model.Loss(window, noise, kKl, absl::MakeSpan(gradient));
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < LstmVae::kNumWeights; ++i) {
    const double before = model.weights()[i];
    model.weights()[i] = before + kStep;
    const double above = model.Loss(window, noise, kKl, {});
    model.weights()[i] = before - kStep;
    const double below = model.Loss(window, noise, kKl, {});
    model.weights()[i] = before;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << "weight " << i;
  }
}

std::vector<Window> CalmWindows(int count) {
  const Task task = MakeTask({.num_machines = 4, .has_fault = false, .seed = 2});
  return TrainingWindows(absl::MakeConstSpan(&task.metrics[1], 1), {.num_windows = count});
}

TEST(LstmVaeTest, TheFastWayGivesWhatTheExactOneDoes) {
  const LstmVae model = LstmVae::Create(5);
  const std::array<double, kLatent> no_noise = {};
  for (const int count : {1, 7, 8, 9}) {
    const std::vector<Window> windows = CalmWindows(count);
    double exact = 0;
    for (const Window& window : windows) exact += model.Loss(window, no_noise, 0, {});
    EXPECT_NEAR(ReconstructionError(model, windows), exact / static_cast<double>(windows.size()),
                1e-5);
  }
}

TEST(LstmVaeTest, LearnsToWriteWindowsBackTheSameEachTime) {
  const std::vector<Window> windows = CalmWindows(1000);
  LstmVae model = LstmVae::Create(1);
  const double before = ReconstructionError(model, windows);
  model.Train(windows, {.epochs = 25});
  EXPECT_LT(ReconstructionError(model, windows), before / 50);
  LstmVae again = LstmVae::Create(1);
  again.Train(windows, {.epochs = 25});
  EXPECT_EQ(model.weights(), again.weights());
}

TEST(LstmVaeTest, OtherWeightsAreRefused) {
  EXPECT_FALSE(LstmVae::FromWeights(std::vector<double>(424)).ok());
  EXPECT_FALSE(LstmVae::FromWeights(std::vector<double>(425, NAN)).ok());
  EXPECT_TRUE(LstmVae::FromWeights(LstmVae::Create(1).weights()).ok());
}

// --- the detector -----------------------------------------------------------------------------

TEST(NormalScoresTest, OneOfNMachinesReachesTheSquareRootOfNMinusOne) {
  for (const int n : {4, 100, 1500}) {
    std::vector<double> sums(static_cast<size_t>(n), 1.0);
    sums[2] = 1000;
    const std::vector<double> scores = NormalScores(sums);
    EXPECT_NEAR(scores[2], std::sqrt(n - 1.0), 1e-9);
    EXPECT_LT(ScoreThreshold({}, static_cast<size_t>(n)), scores[2]);
    EXPECT_NEAR(HighestScore(static_cast<size_t>(n)), scores[2], 1e-9);
  }
  EXPECT_THAT(NormalScores(std::vector<double>{2, 2, 2}), ElementsAre(0, 0, 0));
}

// Columns of `machines` windows around 0.5; one machine is away from the others.
std::vector<float> RowsWith(size_t machines, size_t stride, size_t away) {
  std::vector<float> rows(kWindow * stride);
  for (size_t row = 0; row < kWindow; ++row) {
    for (size_t m = 0; m < machines; ++m) {
      const double own = 0.02 * std::sin(1.3 * static_cast<double>(m * m + 5 * row));
      rows[row * stride + m] = static_cast<float>((m == away ? 0.62 : 0.5) + own);
    }
  }
  return rows;
}

// The mean distance from all others.
std::vector<double> AllPairs(const std::vector<float>& rows, size_t machines, size_t stride) {
  std::vector<double> means(machines);
  for (size_t a = 0; a < machines; ++a) {
    for (size_t b = 0; b < machines; ++b) {
      double square = 0;
      for (size_t row = 0; row < kWindow; ++row) {
        const double difference = rows[row * stride + a] - rows[row * stride + b];
        square += difference * difference;
      }
      means[a] += std::sqrt(square / kWindow) / static_cast<double>(machines - 1);
    }
  }
  return means;
}

TEST(MeanDistancesTest, TheReferencesStandForAllMachines) {
  static_assert(kReferencesMax < 200);
  for (const size_t machines : {size_t{20}, size_t{200}, size_t{1500}}) {
    const size_t stride = PaddedTo(machines, kLanes);
    for (const size_t away : {size_t{0}, size_t{7}, machines - 1}) {
      const std::vector<float> rows = RowsWith(machines, stride, away);
      const auto sums = MeanDistances({rows.data(), kWindow, stride}, machines);
      const auto exact = AllPairs(rows, machines, stride);
      const auto first = [](const auto& of) { return std::max_element(of.begin(), of.end()); };
      EXPECT_EQ(first(sums) - sums.begin(), static_cast<std::ptrdiff_t>(away));
      EXPECT_EQ(first(exact) - exact.begin(), static_cast<std::ptrdiff_t>(away));
      for (size_t m = 0; m < machines; ++m) {
        ASSERT_NEAR(sums[m], exact[m], machines <= kReferencesMax ? 1e-6 : 0.25 * exact[m])
            << machines << " machines, machine " << m;
      }
    }
  }
}

// A metric of machines at 0.5 with a little of their own; `machine` is at 0.9 from `begin` on.
MetricSeries SeriesWith(int num_machines, int machine, int begin, int end) {
  MetricSeries series;
  series.name = "m";
  for (int m = 0; m < num_machines; ++m) {
    std::vector<float> values(600);
    for (int t = 0; t < 600; ++t) {
      values[static_cast<size_t>(t)] =
          m == machine && t >= begin && t < end
              ? 0.9f
              : 0.5f + 0.01f * static_cast<float>(std::sin(1.7 * t + m * m));
    }
    series.machines.push_back(std::move(values));
  }
  return series;
}

constexpr DetectorOptions kRawOptions = {.embedding = Embedding::kRaw};

TEST(FindSuspectTest, FindsTheMachineThatDiffersForFourMinutes) {
  for (const int n : {4, 8, 200}) {
    const std::vector<MetricSeries> metrics = {SeriesWith(n, -1, 0, 0), SeriesWith(n, 3, 200, 600)};
    const auto suspect = FindSuspect(metrics, {}, kRawOptions);
    ASSERT_TRUE(suspect.has_value()) << n;
    EXPECT_EQ(suspect->machine, 3);
    EXPECT_EQ(suspect->metric, 1);
    EXPECT_NEAR(suspect->begin, 200, kWindow);
    EXPECT_NEAR(suspect->found, 440, kWindow);
  }
}

TEST(FindSuspectTest, AShorterDifferenceIsNoFault) {
  const std::vector<MetricSeries> metrics = {SeriesWith(8, 3, 200, 400)};
  EXPECT_FALSE(FindSuspect(metrics, {}, kRawOptions).has_value());
  DetectorOptions hasty = kRawOptions;
  hasty.needs_continuity = false;
  EXPECT_TRUE(FindSuspect(metrics, {}, hasty).has_value());
}

TEST(FindSuspectTest, TheFirstMetricThatShowsAFaultCounts) {
  const std::vector<MetricSeries> metrics = {SeriesWith(8, 2, 100, 600),
                                             SeriesWith(8, 5, 100, 600)};
  EXPECT_EQ(FindSuspect(metrics, {}, kRawOptions)->machine, 2);
}

TEST(FindSuspectTest, ABurstOnAnotherMachineDoesNotHideTheFault) {
  std::vector<MetricSeries> metrics = {SeriesWith(16, 3, 200, 600)};
  for (int t = 300; t < 400; ++t) metrics[0].machines[7][static_cast<size_t>(t)] = 1;
  EXPECT_EQ(FindSuspect(metrics, {}, kRawOptions)->machine, 3);
  DetectorOptions published = kRawOptions;
  published.has_one_candidate = true;
  EXPECT_FALSE(FindSuspect(metrics, {}, published).has_value());
}

TEST(FindSuspectTest, ADifferenceOfAHairIsNoFault) {
  std::vector<MetricSeries> metrics = {SeriesWith(4, -1, 0, 0)};
  for (auto& machine : metrics[0].machines) machine.assign(600, 0.5f);
  metrics[0].machines[2].assign(600, 0.501f);
  EXPECT_FALSE(FindSuspect(metrics, {}, kRawOptions).has_value());
  DetectorOptions published = kRawOptions;
  published.distance_min = 0;
  EXPECT_EQ(FindSuspect(metrics, {}, published)->machine, 2);
}

TEST(FindSuspectTest, SaysWhetherTheDifferenceLasts) {
  const auto over =
      FindSuspect(std::vector<MetricSeries>{SeriesWith(8, 3, 100, 450)}, {}, kRawOptions);
  EXPECT_FALSE(over->lasts);
  EXPECT_NEAR(over->end, 450, kWindow);
  EXPECT_TRUE(
      FindSuspect(std::vector<MetricSeries>{SeriesWith(8, 3, 100, 600)}, {}, kRawOptions)->lasts);
}

TEST(FindSuspectTest, ADifferenceThatIsOverDoesNotHideTheOneThatLasts) {
  const MetricSeries over = SeriesWith(8, 2, 10, 300);
  MetricSeries both = SeriesWith(8, 5, 320, 600);
  both.machines[2] = over.machines[2];
  const auto in_one_metric = FindSuspect(std::vector<MetricSeries>{both}, {}, kRawOptions);
  EXPECT_EQ(in_one_metric->machine, 5);
  EXPECT_TRUE(in_one_metric->lasts);
  const auto in_a_later_one =
      FindSuspect(std::vector<MetricSeries>{over, SeriesWith(8, 5, 320, 600)}, {}, kRawOptions);
  EXPECT_EQ(in_a_later_one->machine, 5);
  EXPECT_EQ(in_a_later_one->metric, 1);
  const auto only_over = FindSuspect(std::vector<MetricSeries>{over, over}, {}, kRawOptions);
  EXPECT_EQ(only_over->machine, 2);
  EXPECT_EQ(only_over->metric, 0);
  EXPECT_FALSE(only_over->lasts);
}

TEST(FindSuspectTest, ThreadsDoNotChangeTheVerdict) {
  const std::vector<MetricSeries> metrics = {SeriesWith(20, 3, 100, 600)};
  DetectorOptions threads = kRawOptions;
  threads.num_threads = 3;
  EXPECT_EQ(FindSuspect(metrics, {}, threads)->score, FindSuspect(metrics, {}, kRawOptions)->score);
}

TEST(FindSuspectTest, NothingToCompareHasNoSuspect) {
  EXPECT_FALSE(FindSuspect({}, {}, kRawOptions).has_value());
  EXPECT_FALSE(FindSuspect(std::vector<MetricSeries>(1), {}, kRawOptions).has_value());
  MetricSeries empty = {"m", std::vector<std::vector<float>>(5)};
  EXPECT_FALSE(FindSuspect(absl::MakeConstSpan(&empty, 1), {}, kRawOptions).has_value());
}

TEST(FindSuspectTest, TwoMachinesHaveNoSuspect) {
  EXPECT_FALSE(FindSuspect(std::vector<MetricSeries>{SeriesWith(2, 1, 0, 600)}, {}, kRawOptions)
                   .has_value());
}

TEST(FindSuspectTest, EveryAblationFindsAClearFault) {
  const std::vector<MetricSeries> metrics = {SeriesWith(20, 3, 100, 600),
                                             SeriesWith(20, 3, 100, 600)};
  std::vector<LstmVae> models;
  for (int m = 0; m < 2; ++m) {
    LstmVae model = LstmVae::Create(1);
    std::vector<Window> windows(400);
    for (size_t i = 0; i < windows.size(); ++i) windows[i].fill(static_cast<float>(i) / 400);
    model.Train(windows, {.epochs = 15});
    models.push_back(model);
  }
  for (const Embedding embedding : {Embedding::kModelOfMetric, Embedding::kRaw,
                                    Embedding::kOneModel, Embedding::kAllConcatenated}) {
    DetectorOptions options;
    options.embedding = embedding;
    options.score_min = 3;
    const auto suspect = FindSuspect(metrics, models, options);
    ASSERT_TRUE(suspect.has_value()) << static_cast<int>(embedding);
    EXPECT_EQ(suspect->machine, 3) << static_cast<int>(embedding);
  }
  const auto mahalanobis = FindSuspect(
      metrics, {},
      {.embedding = Embedding::kRaw, .distance = Distance::kMahalanobis, .score_min = 3});
  ASSERT_TRUE(mahalanobis.has_value());
  EXPECT_EQ(mahalanobis->machine, 3);
}

// --- how well it does ---------------------------------------------------------------------------

struct Counted {
  int right = 0;
  int wrong = 0;
  int missed = 0;
  double f1() const { return 2.0 * right / (2.0 * right + wrong + missed); }
};

// Small tasks with seeds on which thresholds were chosen; `./dev bench minder` has the large ones
// and the seeds on which nothing was.
TEST(AccuracyTest, F1OfSmallTasksIsNearTheCeiling) {
  constexpr int kMachines[] = {4, 6, 8, 12, 16, 20, 24, 32};
  constexpr uint64_t kSeed = 1;
  LstmVae model = LstmVae::Create(1);
  const Task calm = MakeTask({.num_machines = 8, .seed = 1'000'000});
  model.Train(TrainingWindows(calm.metrics, {.num_windows = 700}), {.epochs = 12});
  const std::vector<LstmVae> models(calm.metrics.size(), model);
  Counted minder;
  Counted ceiling;
  for (uint64_t i = 0; i < 16; ++i) {
    const Task task =
        MakeTask({.num_machines = kMachines[i % 8], .has_fault = i % 4 != 3, .seed = kSeed + i});
    const auto suspect = FindSuspect(task.metrics, models);
    const bool is_right = suspect.has_value() && suspect->machine == task.faulty;
    minder.right += is_right ? 1 : 0;
    minder.wrong += suspect.has_value() && !is_right ? 1 : 0;
    minder.missed += task.faulty >= 0 && !is_right ? 1 : 0;
    ceiling.right += task.is_visible ? 1 : 0;
    ceiling.missed += task.faulty >= 0 && !task.is_visible ? 1 : 0;
  }
  EXPECT_GE(ceiling.right, 9);
  EXPECT_GE(minder.f1(), 0.95 * ceiling.f1())
      << minder.right << " right, " << minder.wrong << " wrong, " << minder.missed << " missed";
}

// --- recordings and models ----------------------------------------------------------------------

// Machines at 10 with a little of their own, of 20; machine `bad` is at 18 from second 300 on.
Recording RecordingOf(int num_machines, int bad, int num_seconds = 900) {
  Recording recording;
  recording.metrics = {"heat"};
  for (int m = 0; m < num_machines; ++m) {
    RecordedMachine machine = {absl::StrCat("n", m), {{}}};
    for (int t = 0; t < num_seconds; ++t) {
      const double usual = 10 + 0.2 * std::sin(1.7 * t + m * m);
      machine.metrics[0].push_back({5000.0 + t + 0.1 * m, m == bad && t >= 300 ? 18 : usual});
    }
    recording.machines.push_back(machine);
  }
  return recording;
}

const MinderModels& HeatModels() {
  static const MinderModels models =
      *TrainModels(std::vector<Recording>{RecordingOf(4, -1)}, {},
                   {.model = {.epochs = 10}, .set = {.num_windows = 400}});
  return models;
}

TEST(RecordingTest, ATextIsReadAsItWasWritten) {
  Recording recording = RecordingOf(3, 1, 20);
  recording.machines[1].metrics[0].pop_back();
  const auto read = ParseRecording(FormatRecording(recording));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FormatRecording(*read), FormatRecording(recording));
  EXPECT_EQ(read->machines[1].metrics[0].size(), 19u);
}

TEST(RecordingTest, AMalformedLineIsNamed) {
  for (const char* text : {"", "a,b\n", "machine,seconds\n", "machine,seconds,m\nn0,1\n",
                           "machine,seconds,m\nn0,nan,1\n", "machine,seconds,m\nn0,1,x\n"}) {
    EXPECT_EQ(ParseRecording(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseRecording("machine,seconds,m\nn0,1,x\n").status().message()),
              ::testing::HasSubstr("line 2: a value is no number"));
}

// Other programs write such texts.
TEST(RecordingTest, AFewMalformedLinesAreLeftOutAndCounted) {
  std::string text = "machine,seconds,m\n";
  for (int i = 0; i < 198; ++i) absl::StrAppend(&text, "n0,", i, ",1\n");
  const auto read = ParseRecording(text + "n0,198,N/A\nn0,199\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_bad_lines, 2);
  EXPECT_THAT(read->first_bad_line, ::testing::HasSubstr("line 200: a value is no number"));
  EXPECT_EQ(read->machines[0].metrics[0].size(), 198u);
  const auto refused = ParseRecording(text + "n0,198,N/A\nn0,199\nn0,200,-,\n");
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::HasSubstr("line 200: a value is no number"));
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::HasSubstr("3 of 201 lines are malformed, and at most 1 % may be"));
}

TEST(ModelFileTest, ATextIsReadAsItWasWritten) {
  MinderModels models = HeatModels();
  models.made_by = "a \"test\"";
  const std::string text = FormatModels(models);
  const auto read = ParseModels(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FormatModels(*read), text);
  EXPECT_EQ(read->made_by, models.made_by);
}

TEST(ModelFileTest, NumbersThatAreHardToWriteAreReadAsTheyWere) {
  MinderModels models = HeatModels();
  models.metrics[0].limits = {1, std::nextafter(1.0, 2.0)};
  std::string text = FormatModels(models);
  const size_t weight = text.find("\"weights\": [") + 12;
  text.replace(weight, text.find(',', weight) - weight, "-0.0");
  const auto read = ParseModels(text);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto again = ParseModels(FormatModels(*read));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FormatModels(*again), FormatModels(*read));
  EXPECT_EQ(again->metrics[0].limits.upper, models.metrics[0].limits.upper);
}

TEST(ModelFileTest, MalformedModelsAreRefused) {
  for (const char* text : {"", "[]", "{\"format\": 2}", "{\"format\": 1, \"metrics\": []}",
                           "{\"format\": 1, \"metrics\": [{\"name\": \"m\", \"weights\": [1]}]}",
                           "{\"format\": 1, \"metrics\": [3]}"}) {
    EXPECT_EQ(ParseModels(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ModelFileTest, TheDefaultModelsWriteWindowsOfEachLevelBack) {
  std::vector<Window> levels(64);
  for (size_t i = 0; i < levels.size(); ++i) levels[i].fill(static_cast<float>(i) / 63);
  for (const MetricModel& metric : DefaultModels().metrics) {
    EXPECT_LT(ReconstructionError(metric.model, levels), 1e-3) << metric.name;
  }
}

// --- from a recording to a verdict --------------------------------------------------------------

TEST(ExamineTest, NamesTheMachineTheMetricAndWhenItBegan) {
  const Examination found = Examine(RecordingOf(5, 3), {}, HeatModels(), {});
  ASSERT_TRUE(found.verdict.has_value());
  EXPECT_EQ(found.verdict->machine, "n3");
  EXPECT_EQ(found.verdict->metric, "heat");
  EXPECT_NEAR(found.verdict->begin, 5300, 10);
  EXPECT_TRUE(found.verdict->lasts);
  EXPECT_NEAR(found.verdict->value, 18, 0.5);
  EXPECT_NEAR(found.verdict->usual, 10, 0.5);
  EXPECT_EQ(found.verdict->curve.size(), kCurvePoints);
  EXPECT_NEAR(found.verdict->curve.front(), 10, 0.5);
  EXPECT_NEAR(found.verdict->curve.back(), 18, 0.5);
}

TEST(ExamineTest, NormalMachinesAreNotBlamed) {
  const Examination found = Examine(RecordingOf(5, -1), {}, HeatModels(), {});
  EXPECT_FALSE(found.verdict.has_value());
  EXPECT_EQ(found.num_compared, 5u);
  EXPECT_TRUE(found.notes.empty());
}

TEST(ExamineTest, OnlyMachinesOfAGroupAreCompared) {
  const Examination found = Examine(RecordingOf(5, 3), {0, 0, 0, 1, 1}, HeatModels(), {});
  EXPECT_FALSE(found.verdict.has_value());
  EXPECT_EQ(found.num_compared, 3u);
  EXPECT_EQ(found.notes.size(), 2u);
}

TEST(ExamineTest, HostileSeriesBlameNobody) {
  EXPECT_FALSE(Examine({}, {}, HeatModels(), {}).verdict.has_value());
  for (const int count : {0, 1, 2}) {
    EXPECT_FALSE(Examine(RecordingOf(count, 0), {}, HeatModels(), {}).verdict.has_value());
  }
  Recording not_numbers = RecordingOf(5, -1);
  for (Sample& sample : not_numbers.machines[2].metrics[0]) sample.value = NAN;
  EXPECT_FALSE(Examine(not_numbers, {}, HeatModels(), {}).verdict.has_value());
  Recording short_series = RecordingOf(5, -1);
  short_series.machines[2].metrics[0].resize(100);
  EXPECT_FALSE(Examine(short_series, {}, HeatModels(), {}).verdict.has_value());
  Recording empty = RecordingOf(5, -1);
  empty.machines[2].metrics[0].clear();
  EXPECT_FALSE(Examine(empty, {}, HeatModels(), {}).verdict.has_value());
  Recording no_metric = RecordingOf(5, 3);
  no_metric.metrics = {"cold"};
  EXPECT_FALSE(Examine(no_metric, {}, HeatModels(), {}).verdict.has_value());
}

TEST(ExamineTest, AMetricWithoutAModelIsNamed) {
  Recording recording = RecordingOf(5, 3);
  recording.metrics = {"cold", "heat", "noise"};
  for (RecordedMachine& machine : recording.machines) {
    const std::vector<Sample> heat = machine.metrics[0];
    machine.metrics = {heat, heat, heat};
  }
  const Examination found = Examine(recording, {}, HeatModels(), {});
  ASSERT_TRUE(found.verdict.has_value());
  EXPECT_EQ(found.verdict->metric, "heat");
  EXPECT_THAT(found.notes, ElementsAre("no model for cold, noise: not compared; `megascale minder "
                                       "train` makes models"));
}

TEST(ExamineTest, AClockThatJumpsBlamesNobody) {
  for (const double jump : {-3600.0, 3600.0, 1e300, -1e300}) {
    Recording recording = RecordingOf(5, -1);
    auto& samples = recording.machines[2].metrics[0];
    for (size_t t = 500; t < samples.size(); ++t) samples[t].seconds += jump;
    EXPECT_FALSE(Examine(recording, {}, HeatModels(), {}).verdict.has_value()) << jump;
  }
}

TEST(ExamineTest, AGapIsNotFilledWithABlame) {
  Recording recording = RecordingOf(5, 3);
  auto& samples = recording.machines[3].metrics[0];
  samples.erase(samples.begin() + 400, samples.begin() + 500);
  const Examination found = Examine(recording, {}, HeatModels(), {});
  EXPECT_FALSE(found.verdict.has_value());
  EXPECT_EQ(found.num_compared, 4u);
  EXPECT_THAT(found.notes, ElementsAre("machine n3: has no heat for 101 s; it is not compared"));
}

TEST(ExamineTest, AfterARestartThatAllMachinesShareTheTimeSinceThenIsCompared) {
  Recording recording = RecordingOf(5, 3);
  for (RecordedMachine& machine : recording.machines) {
    std::erase_if(machine.metrics[0], [](const Sample& sample) {
      return sample.seconds > 5400 && sample.seconds < 5500;
    });
  }
  const Examination found = Examine(recording, {}, HeatModels(), {});
  ASSERT_TRUE(found.verdict.has_value());
  EXPECT_EQ(found.verdict->machine, "n3");
  EXPECT_NEAR(found.num_seconds, 400, 3);
  EXPECT_TRUE(found.notes.empty());
}

TEST(ExamineTest, AMachineOfAnotherTimeIsLeftOutAndNamed) {
  for (const double shift : {-700.0, 3600.0}) {
    Recording recording = RecordingOf(5, 1);
    for (Sample& sample : recording.machines[4].metrics[0]) sample.seconds += shift;
    const Examination found = Examine(recording, {}, HeatModels(), {});
    ASSERT_TRUE(found.verdict.has_value()) << shift;
    EXPECT_EQ(found.verdict->machine, "n1");
    EXPECT_EQ(found.num_compared, 4u);
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_NE(found.notes[0].find("machine n4"), std::string::npos) << found.notes[0];
  }
  Recording recording = RecordingOf(5, 1);
  recording.machines[4].metrics[0].erase(recording.machines[4].metrics[0].begin(),
                                         recording.machines[4].metrics[0].end() - 1);
  const Examination found = Examine(recording, {}, HeatModels(), {});
  ASSERT_TRUE(found.verdict.has_value());
  EXPECT_EQ(found.verdict->machine, "n1");
  EXPECT_EQ(found.notes.size(), 1u);
}

TEST(ExamineTest, ARecordingOfLessThanFourMinutesIsTooShort) {
  const Examination found = Examine(RecordingOf(5, 3, 200), {}, HeatModels(), {});
  EXPECT_FALSE(found.verdict.has_value());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_EQ(found.notes[0],
            "all machines were measured together for 199 s, and 247 s are needed: the job ended "
            "too early, has just begun, or was interrupted");
}

}  // namespace
}  // namespace megascale::minder

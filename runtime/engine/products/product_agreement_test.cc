// Ranks of threads with a real store and a real folder. What they measure is made up: each rank
// finds another algorithm fastest, so that ranks that did not agree would differ.
#include "runtime/engine/products/product_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {
namespace {

using agent::v1::RestorePoint;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A table has a line "product algorithm" for each product. A call's product is the number of its
// rows.
class MadeUpTuner final : public device::ProductTuner {
 public:
  MadeUpTuner(
      int rank, absl::Status failure, std::function<void()> on_call = [] {})
      : rank_(rank), failure_(std::move(failure)), on_call_(std::move(on_call)) {}

  absl::StatusOr<std::vector<std::string>> Missing(absl::string_view table,
                                                   const device::ProductCalls& calls) override {
    on_call_();
    std::vector<std::string> missing;
    const std::map<std::string, std::string> known = Parse(table);
    for (const ops::MatMulArgs& call : calls.calls) {
      const std::string name = absl::StrCat("p", call.c.rows);
      if (known.count(name) == 0) missing.push_back(name);
    }
    return missing;
  }
  absl::StatusOr<std::string> Measure(absl::string_view table, const device::ProductCalls& calls,
                                      const OnProgress& on_progress) override {
    ++num_measured;
    RETURN_IF_ERROR(failure_);
    std::string measured;
    const std::vector<std::string> names = *Missing(table, calls);
    for (const std::string& name : names) {
      on_progress(0, static_cast<int>(names.size()));
      absl::StrAppend(&measured, name, " fastest-on-rank-", rank_, "\n");
    }
    return measured;
  }
  absl::StatusOr<std::string> Join(absl::Span<const std::string> tables) override {
    on_call_();
    std::map<std::string, std::string> all;
    for (const std::string& table : tables) all.merge(Parse(table));
    std::string joined;
    for (const auto& [name, algorithm] : all) {
      absl::StrAppend(&joined, name, " ", algorithm, "\n");
    }
    return joined;
  }
  absl::Status Use(absl::string_view table, const device::ProductCalls& calls) override {
    used = std::string(table);
    if (Missing(table, calls)->empty()) return absl::OkStatus();
    return absl::FailedPreconditionError("it has no algorithm for a product");
  }

  int num_measured = 0;
  std::string used;

 private:
  static std::map<std::string, std::string> Parse(absl::string_view table) {
    std::map<std::string, std::string> products;
    for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
      products.insert(absl::StrSplit(line, ' '));
    }
    return products;
  }

  const int rank_;
  const absl::Status failure_;  // of Measure
  const std::function<void()> on_call_;
};

class ProductAgreementTest : public ::testing::Test {
 protected:
  ProductAgreementTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(base::MakeDirectories(folder_).ok());
    restore_.set_source(RestorePoint::SOURCE_INITIAL);
  }

  struct Outcome {
    std::vector<absl::Status> status;
    std::vector<std::string> used;
    int num_measured = 0;
    // Calls of the tuner at which a rank showed that it waits for peers.
    int num_calls_as_waiting = 0;
  };
  // Runs one attempt, whose ranks have the given products.
  Outcome Attempt(const std::vector<std::vector<int>>& products_of_ranks) {
    ++attempt_;
    const size_t num_ranks = products_of_ranks.size();
    Outcome outcome = {.status = std::vector<absl::Status>(num_ranks),
                       .used = std::vector<std::string>(num_ranks)};
    std::mutex mutex;
    std::vector<std::thread> threads;
    auto region = base::SharedMemory::Create("heartbeats",
                                             telemetry::HeartbeatBytes(static_cast<int>(num_ranks)))
                      .value();
    telemetry::FormatHeartbeats(*region);
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        comm::LinkStore* raw = nullptr;
        comm::LinkStore link(
            {.job_id = "job", .attempt = attempt_, .client = absl::StrCat("rank-", rank)},
            [&](const agent::v1::StoreRequest& request) {
              store_.Handle(request,
                            [raw](const agent::v1::StoreReply& reply) { raw->OnReply(reply); });
              return absl::OkStatus();
            });
        raw = &link;
        device::ProductCalls calls;
        for (const int product : products_of_ranks[rank]) {
          calls.calls.emplace_back().c.rows = product;
        }
        const int slot = static_cast<int>(rank);
        telemetry::HeartbeatWriter heartbeat(region.get(), slot);
        const auto on_call = [&] {
          const auto shown = telemetry::ReadHeartbeat(*region, slot, absl::ZeroDuration());
          const std::lock_guard<std::mutex> lock(mutex);
          if (shown.instruction() != 0) ++outcome.num_calls_as_waiting;
        };
        MadeUpTuner tuner(slot, rank == 1 ? failure_of_rank_1_ : absl::Status(), on_call);
        const absl::Status status = AgreeOnProducts({.job_id = "job",
                                                     .directory = folder_,
                                                     .restore = restore_,
                                                     .may_differ = may_differ_,
                                                     .rank = slot,
                                                     .num_ranks = static_cast<int>(num_ranks),
                                                     .store = &link,
                                                     .timeout = timeout_,
                                                     .heartbeat = &heartbeat},
                                                    calls, &tuner);
        const std::lock_guard<std::mutex> lock(mutex);
        outcome.status[rank] = status;
        outcome.used[rank] = tuner.used;
        outcome.num_measured += tuner.num_measured;
        // Its peers would wait in vain: the driver ends the attempt of a rank that failed.
        if (!status.ok()) store_.DropAttemptsBefore("job", attempt_ + 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcome;
  }

  // The attempts begin from a checkpoint with this table.
  void BeginFrom(const std::string& job_id, const std::string& table) {
    const std::string from = absl::StrCat(folder_, "/from");
    ASSERT_TRUE(base::MakeDirectories(from).ok());
    ASSERT_TRUE(checkpoint::KeepProductTable(from, table).ok());
    checkpoint::v1::Manifest manifest;
    manifest.set_job_id(job_id);
    ASSERT_TRUE(checkpoint::CopyProductTable(from, from, manifest.mutable_numerics()).ok());
    manifest.set_format_version(checkpoint::kFormatVersion);
    ASSERT_TRUE(base::WriteFileDurably(absl::StrCat(from, "/", checkpoint::kManifestFile),
                                       checkpoint::ToJson(manifest, checkpoint::JsonStyle::kPretty))
                    .ok());
    restore_.set_source(RestorePoint::SOURCE_STORAGE);
    restore_.set_directory(from);
  }

  std::string Kept() const { return checkpoint::ReadProductTable(folder_).value(); }

  const std::string folder_ = absl::StrCat(
      ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  RestorePoint restore_;
  bool may_differ_ = false;
  absl::Status failure_of_rank_1_;
  absl::Duration timeout_ = absl::Minutes(5);

 private:
  comm::EmbeddedStore store_;
  int64_t attempt_ = 0;
};

TEST_F(ProductAgreementTest, OneRankOfEachSetMeasuresAndAllUseWhatIsKept) {
  const Outcome outcome = Attempt({{1, 2}, {1, 2}, {2, 3}, {2, 3}, {1, 2}});
  EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
  EXPECT_EQ(outcome.num_measured, 2);
  EXPECT_THAT(outcome.used, Each(Kept()));
  EXPECT_THAT(Kept(), AllOf(HasSubstr("p1 "), HasSubstr("p2 "), HasSubstr("p3 ")));
}

// The failure detector looks for the cause elsewhere while a rank says that it waits for peers.
TEST_F(ProductAgreementTest, ARankSaysThatItWaitsOnlyWhileItDoes) {
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = Attempt({{1}, {2}, {1}});
    EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
    EXPECT_EQ(outcome.num_calls_as_waiting, 0);
  }
}

TEST_F(ProductAgreementTest, ARankWithoutProductsWaitsForTheTableToo) {
  const Outcome outcome = Attempt({{}, {4}});
  EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
  EXPECT_THAT(outcome.used, Each(std::string("p4 fastest-on-rank-1\n")));
}

TEST_F(ProductAgreementTest, ARestartMeasuresNothing) {
  const Outcome first = Attempt({{1, 2}, {2, 3}});
  for (const auto source :
       {RestorePoint::SOURCE_INITIAL, RestorePoint::SOURCE_MEMORY, RestorePoint::SOURCE_STORAGE}) {
    restore_.set_source(source);
    // The ranks have changed places.
    const Outcome again = Attempt({{2, 3}, {1, 2}});
    EXPECT_THAT(again.status, Each(absl::OkStatus()));
    EXPECT_EQ(again.num_measured, 0);
    EXPECT_THAT(again.used, Each(first.used[0]));
  }
}

// Nobody has computed by what was measured before an attempt ended early.
TEST_F(ProductAgreementTest, AnAttemptThatEndsWhileItMeasuresKeepsNothing) {
  failure_of_rank_1_ = absl::InternalError("the device is lost");
  const Outcome ended = Attempt({{1}, {2}, {1}});
  EXPECT_EQ(ended.status[1], failure_of_rank_1_);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ended.status[static_cast<size_t>(rank)].code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ended.used[static_cast<size_t>(rank)], "");
  }
  EXPECT_EQ(checkpoint::ReadProductTable(folder_).status().code(), absl::StatusCode::kNotFound);
  failure_of_rank_1_ = absl::OkStatus();
  const Outcome again = Attempt({{1}, {2}, {1}});
  EXPECT_THAT(again.status, Each(absl::OkStatus()));
  EXPECT_THAT(again.used, Each(Kept()));
}

TEST_F(ProductAgreementTest, AProductWithoutAnAlgorithmEndsTheJobWithoutARetry) {
  failure_of_rank_1_ = absl::FailedPreconditionError("no algorithm for p2");
  EXPECT_EQ(Attempt({{1}, {2}}).status[1], absl::InvalidArgumentError("no algorithm for p2"));
}

TEST_F(ProductAgreementTest, AJobFromACheckpointTakesItsTableAndMeasuresWhatItLacks) {
  BeginFrom("another job", "p2 of-the-checkpoint\n");
  const Outcome outcome = Attempt({{2, 3}, {2}});
  EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
  EXPECT_THAT(outcome.used, Each(std::string("p2 of-the-checkpoint\np3 fastest-on-rank-0\n")));
  EXPECT_EQ(outcome.num_measured, 1);
  // Until it has a checkpoint of its own, its table has more than the one that it began with.
  EXPECT_THAT(Attempt({{2, 3}, {2}}).status, Each(absl::OkStatus()));
  // With the user's leave it measures all.
  std::filesystem::remove(absl::StrCat(folder_, "/", checkpoint::kProductTableFile));
  may_differ_ = true;
  EXPECT_THAT(Attempt({{2, 3}}).used[0], HasSubstr("p2 fastest-on-rank-0"));
}

TEST_F(ProductAgreementTest, AJobGoesOnByTheTableOfItsOwnCheckpointWhateverTheUserAllows) {
  BeginFrom("job", "p2 of-the-checkpoint\n");
  may_differ_ = true;
  const Outcome outcome = Attempt({{2}, {2}});
  EXPECT_THAT(outcome.used, Each(std::string("p2 of-the-checkpoint\n")));
  EXPECT_EQ(outcome.num_measured, 0);
}

TEST_F(ProductAgreementTest, ATableThatIsNotTheOneOfTheJobsCheckpointIsRefused) {
  BeginFrom("job", "p2 of-the-checkpoint\n");
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "p2 another\n").ok());
  const absl::Status status = Attempt({{2}, {2}}).status[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            absl::StrCat(folder_,
                         "/products.json is not the table by which the job has trained; "
                         "copy that of its checkpoint ",
                         folder_, "/from over it"));
}

TEST_F(ProductAgreementTest, ATableThatIsMissingDamagedOrTooSmallIsRefusedInOneLine) {
  const auto refusal = [&](const std::vector<std::vector<int>>& products) {
    const Outcome outcome = Attempt(products);
    EXPECT_EQ(outcome.status[0].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(outcome.status[1].ok());
    EXPECT_EQ(outcome.num_measured, 0);
    const std::string message(outcome.status[0].message());
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_THAT(message, HasSubstr(absl::StrCat(folder_, "/products.json")));
    return message;
  };
  restore_.set_source(RestorePoint::SOURCE_MEMORY);
  EXPECT_THAT(refusal({{1}, {1}}), HasSubstr("is missing, and the job has trained by it"));
  restore_.set_source(RestorePoint::SOURCE_INITIAL);
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "p1 a\n").ok());
  EXPECT_THAT(refusal({{2}, {2}}), HasSubstr("it has no algorithm for a product"));
  ASSERT_TRUE(base::WriteFileDurably(absl::StrCat(folder_, "/products.json"), "{}").ok());
  EXPECT_THAT(refusal({{1}, {1}}), HasSubstr("is damaged"));
}

TEST_F(ProductAgreementTest, ARankThatDoesNotComeIsADeadline) {
  timeout_ = absl::ZeroDuration();
  restore_.set_source(RestorePoint::SOURCE_INITIAL);
  comm::LinkStore link({.job_id = "job", .attempt = 1, .client = "rank-1"},
                       [](const agent::v1::StoreRequest&) { return absl::OkStatus(); });
  MadeUpTuner tuner(1, absl::OkStatus());
  const absl::Status status = AgreeOnProducts({.job_id = "job",
                                               .directory = folder_,
                                               .restore = restore_,
                                               .rank = 1,
                                               .num_ranks = 2,
                                               .store = &link,
                                               .timeout = timeout_},
                                              {}, &tuner);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("other ranks did not publish"));
}

}  // namespace
}  // namespace megascale::engine

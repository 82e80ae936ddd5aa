// Ranks of threads with a real store, a real folder and real communicators between two machines.
// What they measure is made up: each rank finds another algorithm fastest, so that ranks that did
// not agree would differ.
#include "runtime/engine/products/product_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
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
#include "runtime/checkpoint/snapshot.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/comm/testing/test_world.h"
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

// The driver's store, as the links of ranks see it. A driver that is restarted has an empty store,
// and agents repeat to it what their ranks have written and what they wait for.
class RestartingStore {
 public:
  RestartingStore(int num_ranks, int64_t attempt, int restart_before)
      : restart_before_(restart_before), core_(std::make_unique<comm::EmbeddedStore>()) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      links_.push_back(std::make_unique<comm::LinkStore>(
          comm::LinkStoreOptions{
              .job_id = "job", .attempt = attempt, .client = absl::StrCat("rank-", rank)},
          [this, rank](const agent::v1::StoreRequest& request) {
            Handle(rank, request);
            return absl::OkStatus();
          }));
    }
  }

  comm::Store* link(int rank) { return links_.at(static_cast<size_t>(rank)).get(); }
  int num_requests() const { return static_cast<int>(requests_.size()); }
  // The store forgets all that is written, and agents repeat nothing.
  void LoseWrites() { loses_writes_ = true; }

 private:
  void Handle(int rank, const agent::v1::StoreRequest& request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.emplace_back(rank, request);
    if (loses_writes_ && request.operation() == agent::v1::StoreRequest::OPERATION_SET) {
      agent::v1::StoreReply done;
      done.set_request_id(request.request_id());
      return links_.at(static_cast<size_t>(rank))->OnReply(done);
    }
    if (num_requests() != restart_before_) return Ask(rank, request);
    core_ = std::make_unique<comm::EmbeddedStore>();
    // The agents come back in any order.
    for (auto repeated = requests_.rbegin(); repeated != requests_.rend(); ++repeated) {
      Ask(repeated->first, repeated->second);
    }
  }
  void Ask(int rank, const agent::v1::StoreRequest& request) {
    core_->Handle(request, [this, rank](const agent::v1::StoreReply& reply) {
      links_.at(static_cast<size_t>(rank))->OnReply(reply);
    });
  }

  const int restart_before_;  // the number of the request that finds a new store; 0: none
  bool loses_writes_ = false;
  std::vector<std::unique_ptr<comm::LinkStore>> links_;
  std::mutex mutex_;
  std::vector<std::pair<int, agent::v1::StoreRequest>> requests_;
  std::unique_ptr<comm::EmbeddedStore> core_;
};

class ProductAgreementTest : public ::testing::Test {
 protected:
  ProductAgreementTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(base::MakeDirectories(folder_).ok());
    restore_.set_source(RestorePoint::SOURCE_INITIAL);
    checkpoint::FormatSnapshots(*snapshots_, 0, kTableBytes);
  }

  struct Outcome {
    std::vector<absl::Status> status;
    std::vector<std::string> used;
    int num_measured = 0;
    // Calls of the tuner at which a rank showed that it waits for peers.
    int num_calls_as_waiting = 0;
    int num_requests = 0;  // to the store
  };
  // Runs one attempt, whose ranks have the given products.
  Outcome Attempt(const std::vector<std::vector<int>>& products_of_ranks) {
    ++attempt_;
    const auto num_ranks = static_cast<int>(products_of_ranks.size());
    Outcome outcome = {.status = std::vector<absl::Status>(products_of_ranks.size()),
                       .used = std::vector<std::string>(products_of_ranks.size())};
    std::mutex mutex;
    auto region =
        base::SharedMemory::Create("heartbeats", telemetry::HeartbeatBytes(num_ranks)).value();
    telemetry::FormatHeartbeats(*region);
    RestartingStore store(num_ranks, attempt_, restart_store_before_);
    if (store_loses_writes_) store.LoseWrites();
    comm::ThreadWorld world(comm::OneGroup(num_ranks, 2, 4096));
    world.RunConnected([&](int rank, comm::Fabric& fabric) {
      const auto communicator = fabric.Make("all").value();
      const AllRanks all({.data = communicator.get()});
      const auto index = static_cast<size_t>(rank);
      device::ProductCalls calls;
      for (const int product : products_of_ranks[index]) {
        calls.calls.emplace_back().c.rows = product;
      }
      telemetry::HeartbeatWriter heartbeat(region.get(), rank);
      const auto on_call = [&] {
        const auto shown = telemetry::ReadHeartbeat(*region, rank, absl::ZeroDuration());
        const std::lock_guard<std::mutex> lock(mutex);
        if (shown.instruction() != 0) ++outcome.num_calls_as_waiting;
      };
      MadeUpTuner tuner(rank, rank == 1 ? failure_of_rank_1_ : absl::Status(), on_call);
      const absl::Status status =
          AgreeOnProducts({.job_id = "job",
                           .directory = folder_,
                           .restore = restore_,
                           .may_differ = may_differ_,
                           .all = &all,
                           .store = store.link(rank),
                           .snapshots = rank == 0 ? snapshots_.get() : nullptr,
                           .timeout = timeout_,
                           .store_timeout = store_timeout_,
                           .heartbeat = &heartbeat},
                          calls, &tuner);
      // The process of a rank that failed ends, which its peers notice.
      if (!status.ok()) communicator->Abort(status);
      // A job's ranks stay; a communicator that ends may take what it has not sent along.
      (void)communicator->Barrier({.timeout = timeout_});
      const std::lock_guard<std::mutex> lock(mutex);
      outcome.status[index] = status;
      outcome.used[index] = tuner.used;
      outcome.num_measured += tuner.num_measured;
    });
    outcome.num_requests = store.num_requests();
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
  absl::Duration store_timeout_ = absl::Minutes(5);
  int restart_store_before_ = 0;
  bool store_loses_writes_ = false;

  static constexpr size_t kTableBytes = 10'000;
  // The memory of rank 0, which outlives attempts.
  const std::unique_ptr<base::SharedMemory> snapshots_ =
      base::SharedMemory::Create("snapshots", checkpoint::SnapshotBytes(0, kTableBytes)).value();

 private:
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
  EXPECT_EQ(checkpoint::KeptTable(*snapshots_).value(), Kept());
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

// Its store is empty then. What was counted and awaited there was lost once, and ranks waited for
// each other as long as a start may take ten times.
TEST_F(ProductAgreementTest, ARestartOfTheDriverChangesNothingWheneverItHappens) {
  const int num_requests = Attempt({{1}, {2}, {1}}).num_requests;
  EXPECT_GE(num_requests, 3);
  for (restart_store_before_ = 1; restart_store_before_ <= num_requests; ++restart_store_before_) {
    std::filesystem::remove(absl::StrCat(folder_, "/", checkpoint::kProductTableFile));
    for (int attempt = 0; attempt < 2; ++attempt) {
      const Outcome outcome = Attempt({{1}, {2}, {1}});
      EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
      EXPECT_THAT(outcome.used, Each(Kept()));
    }
  }
}

// As with a server that was restarted without its data.
TEST_F(ProductAgreementTest, AStoreThatLosesTheDigestEndsTheAttemptAtItsOwnDeadline) {
  store_loses_writes_ = true;
  store_timeout_ = absl::ZeroDuration();
  const Outcome outcome = Attempt({{1}, {1}});
  EXPECT_EQ(outcome.status[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcome.status[1].message()),
              HasSubstr("the store did not show products/digest within 0"));
  store_loses_writes_ = false;
  store_timeout_ = absl::Minutes(5);
  const Outcome again = Attempt({{1}, {1}});
  EXPECT_THAT(again.status, Each(absl::OkStatus()));
  EXPECT_EQ(again.num_measured, 0);
}

// The driver serves the digest alone, not the table: a copy for each of thousands of ranks.
TEST_F(ProductAgreementTest, TheTableDoesNotGoThroughTheStore) {
  ASSERT_TRUE(checkpoint::KeepProductTable(folder_, "p1 a\n" + std::string(100'000, '\n')).ok());
  const Outcome outcome = Attempt({{1}, {1}, {1}, {1}});
  EXPECT_THAT(outcome.status, Each(absl::OkStatus()));
  EXPECT_THAT(outcome.used, Each(Kept()));
  EXPECT_EQ(outcome.num_requests, 4);
  EXPECT_EQ(checkpoint::KeptTable(*snapshots_).status().code(), absl::StatusCode::kNotFound)
      << "it has no room for so much";
}

// A file system that is away, or hangs, may be why the job goes on from memory.
TEST_F(ProductAgreementTest, ARestartFromMemoryReadsNothingFromStorage) {
  const Outcome first = Attempt({{1, 2}, {2, 3}});
  std::filesystem::remove_all(folder_);
  restore_.set_source(RestorePoint::SOURCE_MEMORY);
  const Outcome again = Attempt({{1, 2}, {2, 3}});
  EXPECT_THAT(again.status, Each(absl::OkStatus()));
  EXPECT_EQ(again.num_measured, 0);
  EXPECT_THAT(again.used, Each(first.used[0]));
  // The table by which the job has trained counts, whatever became of the file.
  ASSERT_TRUE(base::MakeDirectories(folder_).ok());
  ASSERT_TRUE(base::WriteFileDurably(absl::StrCat(folder_, "/products.json"), "{}").ok());
  EXPECT_THAT(Attempt({{1, 2}, {2, 3}}).used, Each(first.used[0]));
}

TEST_F(ProductAgreementTest, ADamagedTableInMemoryIsReadFromStorage) {
  const Outcome first = Attempt({{1}, {1}});
  snapshots_->data()[checkpoint::SnapshotBytes(0)] ^= std::byte{1};
  restore_.set_source(RestorePoint::SOURCE_MEMORY);
  EXPECT_THAT(Attempt({{1}, {1}}).used, Each(first.used[0]));
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
  RestartingStore store(2, 1, 0);
  comm::ThreadWorld world(comm::OneGroup(2, 1, 4096));
  std::promise<void> gave_up;
  world.RunConnected([&](int rank, comm::Fabric& fabric) {
    const auto communicator = fabric.Make("all").value();
    const AllRanks all({.data = communicator.get()});
    if (rank == 0) {
      EXPECT_EQ(gave_up.get_future().wait_for(std::chrono::minutes(5)), std::future_status::ready);
      return;
    }
    MadeUpTuner tuner(1, absl::OkStatus());
    const absl::Status status = AgreeOnProducts({.job_id = "job",
                                                 .directory = folder_,
                                                 .restore = restore_,
                                                 .all = &all,
                                                 .store = store.link(1),
                                                 .timeout = absl::Nanoseconds(1)},
                                                {}, &tuner);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    gave_up.set_value();
  });
}

}  // namespace
}  // namespace megascale::engine

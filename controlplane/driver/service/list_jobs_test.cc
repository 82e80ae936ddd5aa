// ListJobs and GetJob in pages, through the real socket of a driver with thousands of jobs.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/service/testing/server_test_base.h"
#include "controlplane/driver/storage/event_log.h"
#include "proto/control.grpc.pb.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
using ::testing::HasSubstr;

constexpr int kRanks = 100;  // of the job "wide", which has the only node

std::string NameOf(int index) { return absl::StrCat("j", index); }

class ListJobsTest : public ServerTestBase {
 protected:
  explicit ListJobsTest(int num_ended = 190, int num_queued = 59)
      : num_ended_(num_ended), num_queued_(num_queued) {}

  void SetUp() override {
    ServerTestBase::SetUp();
    WriteLog();
    Restart();
  }

  // "wide", which runs its preflight; jobs that were cancelled; jobs that wait for slots.
  void WriteLog() {
    std::filesystem::create_directories(options_.state_directory);
    std::filesystem::permissions(options_.state_directory, std::filesystem::perms::owner_all);
    auto log = OpenRocksDbLog(options_.state_directory + "/log");
    ASSERT_TRUE(log.ok()) << log.status();
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    std::vector<Event> events = {started, Submitted("wide", SpecOf(kRanks, 1, 30)),
                                 Joined("n0", "a", kRanks)};
    for (int i = 0; i < num_ended_ + num_queued_; ++i) {
      events.push_back(Submitted(NameOf(i), SpecOf(1, 1, 30)));
      if (i >= num_ended_) continue;
      events.push_back(Cancelled(false));
      events.back().mutable_cancel_requested()->set_job_id(NameOf(i));
    }
    for (Event& event : events) {
      event.set_time_unix_nanos(absl::GetCurrentTimeNanos());
      if (!event.has_job_submitted()) continue;
      const std::string folder =
          absl::StrCat(options_.state_directory, "/jobs/", event.job_submitted().job_id());
      std::filesystem::create_directories(folder);
      event.mutable_job_submitted()->set_directory(folder);
    }
    ASSERT_TRUE((*log)->Append(0, events).ok());
  }

  template <typename Response, typename Method, typename Request>
  grpc::Status Call(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    response->Clear();
    return (jobs_.get()->*method)(&context, request, response);
  }
  grpc::Status List(const control::ListJobsRequest& request) {
    return Call(&control::JobService::Stub::ListJobs, request, &page_);
  }
  grpc::Status Get(const control::GetJobRequest& request) {
    return Call(&control::JobService::Stub::GetJob, request, &job_);
  }
  void Submit(const std::string& job_id) {
    control::SubmitJobRequest request;
    request.set_job_id(job_id);
    *request.mutable_spec() = SmallSpec();
    control::SubmitJobResponse response;
    const grpc::Status status = Call(&control::JobService::Stub::SubmitJob, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  void Cancel(const std::string& job_id) {
    control::CancelJobRequest request;
    request.set_job_id(job_id);
    control::CancelJobResponse response;
    ASSERT_TRUE(Call(&control::JobService::Stub::CancelJob, request, &response).ok());
  }
  // Walks all pages and returns the jobs' ids; calls `between` after each page but the last.
  std::vector<std::string> Walk(
      control::ListJobsRequest request, const std::function<void()>& between = [] {}) {
    std::vector<std::string> ids;
    num_pages_ = 0;
    for (;;) {
      const grpc::Status status = List(request);
      EXPECT_TRUE(status.ok()) << status.error_message();
      ++num_pages_;
      for (const auto& job : page_.jobs()) ids.push_back(job.job_id());
      if (page_.next_page_token().empty() || !status.ok()) return ids;
      request.set_page_token(page_.next_page_token());
      between();
    }
  }
  // All jobs in the order of submission.
  std::vector<std::string> Expected() const {
    std::vector<std::string> ids = {"wide"};
    for (int i = 0; i < num_ended_ + num_queued_; ++i) ids.push_back(NameOf(i));
    return ids;
  }
  // Expects that the request is refused in one line that names the field.
  void ExpectRefused(const control::ListJobsRequest& request, const std::string& field) {
    const grpc::Status status = List(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_TRUE(absl::StartsWith(status.error_message(), field + ": ")) << status.error_message();
    EXPECT_LT(status.error_message().size(), 200u) << status.error_message();
    EXPECT_FALSE(absl::StrContains(status.error_message(), '\n'));
  }

  const int num_ended_;
  const int num_queued_;
  control::ListJobsResponse page_;
  control::GetJobResponse job_;
  int num_pages_ = 0;
};

// More jobs than two of the largest pages have.
class ListManyJobsTest : public ListJobsTest {
 protected:
  ListManyJobsTest() : ListJobsTest(1900, 599) {}
};

TEST_F(ListManyJobsTest, PagesHaveEachJobOnceInOrder) {
  control::ListJobsRequest request;
  EXPECT_EQ(Walk(request), Expected());
  EXPECT_EQ(num_pages_, 3);
  request.set_page_size(700);
  EXPECT_EQ(Walk(request), Expected());
  EXPECT_EQ(num_pages_, 4);
  request.set_newest_first(true);
  std::vector<std::string> newest_first = Walk(request);
  std::reverse(newest_first.begin(), newest_first.end());
  EXPECT_EQ(newest_first, Expected());
  request.set_page_size(500);
  ASSERT_EQ(5 * request.page_size(), num_ended_ + num_queued_ + 1);
  Walk(request);
  EXPECT_EQ(num_pages_, 5) << "a page that ends with the last job is the last one";
}

TEST_F(ListJobsTest, SubmitsAndEndsBetweenPagesMoveNoJob) {
  control::ListJobsRequest request;
  request.set_page_size(100);
  int num_between = 0;
  std::vector<std::string> expected = Expected();
  const std::vector<std::string> ids = Walk(request, [&] {
    const std::string late = absl::StrCat("late", num_between);
    Submit(late);
    expected.push_back(late);
    Cancel(NameOf(num_ended_ + num_between));  // on a page that is still to come
    ++num_between;
  });
  EXPECT_EQ(num_between, 2);
  EXPECT_EQ(ids, expected);
  request.set_newest_first(true);
  std::vector<std::string> newest_first =
      Walk(request, [&] { Submit("later" + NameOf(++num_between)); });
  std::reverse(newest_first.begin(), newest_first.end());
  EXPECT_EQ(newest_first, expected) << "later ones are before the first page";
}

TEST_F(ListJobsTest, ATokenStaysValidWhenTheDriverStartsAgain) {
  control::ListJobsRequest request;
  request.set_page_size(100);
  EXPECT_EQ(Walk(request, [&] { Restart(); }), Expected());
}

TEST_F(ListJobsTest, ATokenOfAForgottenJobIsRefusedAfterAnotherStartOnly) {
  control::ListJobsRequest request;
  request.set_page_size(10);
  ASSERT_TRUE(List(request).ok());
  request.set_page_token(page_.next_page_token());
  options_.retention = {.newest = 100, .age = absl::ZeroDuration()};
  Submit("late");  // a driver that stops before its first event is durable has not started
  Restart();
  for (int i = 0; i < 300 && List(request).ok(); ++i) absl::SleepFor(absl::Milliseconds(100));
  ExpectRefused(request, "page_token");
  EXPECT_THAT(List(request).error_message(), HasSubstr("has forgotten job j8"));
}

TEST_F(ListJobsTest, AListHasSummariesUnlessAllIsAskedFor) {
  control::ListJobsRequest request;
  request.set_page_size(2);
  ASSERT_TRUE(List(request).ok());
  ASSERT_EQ(page_.jobs(0).job_id(), "wide");
  EXPECT_EQ(page_.jobs(0).state(), control::JOB_STATE_STARTING);
  EXPECT_EQ(page_.jobs(0).spec().train().steps(), 30);
  EXPECT_EQ(page_.jobs(0).ranks_size(), 0);
  EXPECT_FALSE(page_.jobs(0).has_time_account());
  EXPECT_EQ(page_.jobs(1).state(), control::JOB_STATE_CANCELLED);
  request.set_with_ranks(true);
  ASSERT_TRUE(List(request).ok());
  EXPECT_EQ(page_.jobs(0).ranks_size(), kRanks);
  EXPECT_TRUE(page_.jobs(0).has_time_account());
}

TEST_F(ListJobsTest, BadSizesAndTokensAreRefusedInOneLine) {
  control::ListJobsRequest request;
  for (const int32_t size :
       {-1, 1001, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    request.set_page_size(size);
    ExpectRefused(request, "page_size");
  }
  request.set_page_size(10);
  ASSERT_TRUE(List(request).ok());
  const std::string token = page_.next_page_token();
  const std::string half = token.substr(0, token.size() / 2);
  std::vector<std::string> bad = {"x",         std::string(100'000, 'a'), "\x01\n", "////",
                                  token + "A", token.substr(1),           half,     token + token};
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    bad.push_back(changed);
  }
  for (const std::string& text : bad) {
    request.set_page_token(text);
    ExpectRefused(request, "page_token");
  }
  request.set_page_token(token);
  request.set_newest_first(true);
  ExpectRefused(request, "page_token");  // of the other direction
  control::GetJobRequest get;
  get.set_job_id("wide");
  get.set_rank_page_size(10);
  ASSERT_TRUE(Get(get).ok());
  request.set_newest_first(false);
  request.set_page_token(job_.next_rank_page_token());
  ExpectRefused(request, "page_token");  // of another list
}

TEST_F(ListJobsTest, TheRanksOfAJobComeInPages) {
  control::GetJobRequest request;
  request.set_job_id("wide");
  ASSERT_TRUE(Get(request).ok());
  EXPECT_EQ(job_.job().ranks_size(), kRanks);
  EXPECT_EQ(job_.next_rank_page_token(), "");
  request.set_rank_page_size(30);
  std::vector<int> ranks;
  do {
    ASSERT_TRUE(Get(request).ok());
    EXPECT_LE(job_.job().ranks_size(), 30);
    for (const auto& rank : job_.job().ranks()) ranks.push_back(rank.status().rank());
    request.set_rank_page_token(job_.next_rank_page_token());
  } while (!job_.next_rank_page_token().empty());
  ASSERT_EQ(ranks.size(), static_cast<size_t>(kRanks));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks[static_cast<size_t>(rank)], rank);

  request.clear_rank_page_token();
  request.set_rank_page_size(-1);
  EXPECT_EQ(Get(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_rank_page_size(30);
  request.set_rank_page_token("x");
  EXPECT_EQ(Get(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_rank_page_token();
  ASSERT_TRUE(Get(request).ok());
  request.set_rank_page_token(job_.next_rank_page_token());
  request.set_job_id(NameOf(0));
  EXPECT_EQ(Get(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "of another job";
}

}  // namespace
}  // namespace megascale::driver

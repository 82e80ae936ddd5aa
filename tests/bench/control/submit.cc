#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "tests/bench/control/benchmarks.h"
#include "tests/bench/control/measures.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

// Returns the seconds of every call, with `clients` threads that make `calls` calls each.
std::vector<double> TimeCalls(int clients, int calls,
                              const std::function<void(int client, int call)>& call) {
  std::vector<double> all;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      std::vector<double> seconds;
      for (int i = 0; i < calls; ++i) {
        const double begin = Now();
        call(client, i);
        seconds.push_back(Now() - begin);
      }
      const std::lock_guard<std::mutex> lock(mutex);
      all.insert(all.end(), seconds.begin(), seconds.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Returns the seconds of `count` calls from the time at which each is due to its end, in an open
// loop: `rate` calls become due in each second, whether those before have ended or not. Each of
// `clients` threads makes them in turn; `after` follows a call and is not timed.
std::vector<double> TimeCallsAtRate(int clients, int count, double rate,
                                    const std::function<void(int client, int call)>& call,
                                    const std::function<void(int client, int call)>& after) {
  std::vector<double> all(static_cast<size_t>(count));
  const double begin = Now();
  std::vector<std::thread> threads;
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      for (int i = client; i < count; i += clients) {
        const double due = begin + i / rate;
        absl::SleepFor(absl::Seconds(due - Now()));
        call(client, i);
        all[static_cast<size_t>(i)] = Now() - due;
        after(client, i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

control::v1::SubmitJobRequest RequestFor(const std::string& job_id) {
  control::v1::SubmitJobRequest request;
  request.set_job_id(job_id);
  auto* spec = request.mutable_spec();
  spec->set_name("bench");
  spec->mutable_model()->set_hidden_size(32);
  spec->mutable_model()->set_num_hidden_layers(2);
  spec->mutable_model()->set_num_attention_heads(2);
  spec->mutable_data()->add_files("/usr/share/common-licenses/GPL-3");
  spec->mutable_train()->set_steps(3);
  spec->mutable_train()->set_seq_length(16);
  spec->mutable_train()->set_global_batch_size(2);
  spec->mutable_train()->set_micro_batch_size(1);
  spec->mutable_train()->set_eval_interval(0);
  return request;
}

// Fewer than the open jobs that a driver accepts.
constexpr int kJobsMax = 900;

// Calls `time` with a function that makes a synced write of `bytes` bytes to a RocksDB of its own,
// and returns the seconds that `time` returns.
std::vector<double> TimeRocksDb(
    size_t bytes,
    const std::function<std::vector<double>(const std::function<void(int, int)>&)>& time) {
  char directory[] = "/tmp/ms-bench-XXXXXX";
  if (::mkdtemp(directory) == nullptr) return {0};
  std::vector<double> seconds;
  {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* opened = nullptr;
    if (!rocksdb::DB::Open(options, directory, &opened).ok()) return {0};
    const std::unique_ptr<rocksdb::DB> db(opened);
    rocksdb::WriteOptions synced;
    synced.sync = true;
    const std::string value(bytes, 'x');
    seconds = time(
        [&](int client, int i) { (void)db->Put(synced, absl::StrCat(client, "/", i), value); });
  }
  std::filesystem::remove_all(directory);
  return seconds;
}

// A driver, and clients with a connection each.
class Submitters {
 public:
  explicit Submitters(int clients) {
    cluster_.StartDriver();
    client::ClientOptions options;
    options.address = client::ParseAddress(cluster_.address()).value();
    for (int i = 0; i < clients; ++i) {
      connections_.push_back(client::JobClient::Create(options).value());
    }
  }
  void Submit(int client, int i) {
    const auto job = connections_[static_cast<size_t>(client)]->Submit(RequestFor(IdOf(client, i)),
                                                                       {.time = absl::Seconds(10)});
    if (!job.ok()) ++failures_;
  }
  void Cancel(int client, int i) {
    control::v1::CancelJobRequest request;
    request.set_job_id(IdOf(client, i));
    if (!connections_[static_cast<size_t>(client)]->Cancel(request).ok()) ++failures_;
  }
  int failures() const { return failures_; }

 private:
  static std::string IdOf(int client, int i) { return absl::StrCat("bench-", client, "-", i); }

  e2e::Cluster cluster_;
  std::vector<std::unique_ptr<client::JobClient>> connections_;
  std::atomic<int> failures_ = 0;
};

size_t RequestBytes() { return RequestFor("bench-000-000").ByteSizeLong(); }

// Submits with 100 clients at a rate. A driver holds a limited number of open jobs, so each job is
// cancelled once its submit is acknowledged.
void MeasureSubmitsAtRate(double rate, int seconds) {
  constexpr int kClients = 100;
  const int count = static_cast<int>(rate * seconds);
  Submitters submitters(kClients);
  const std::vector<double> submits = TimeCallsAtRate(
      kClients, count, rate, [&](int client, int i) { submitters.Submit(client, i); },
      [&](int client, int i) { submitters.Cancel(client, i); });
  std::cout << absl::StrFormat(
      "%.0f submits a second (open loop, each job is cancelled after it), %d clients: %s, %d "
      "failed\n",
      rate, kClients, Quantiles(submits), submitters.failures());
  const std::vector<double> writes = TimeRocksDb(RequestBytes(), [&](const auto& write) {
    return TimeCallsAtRate(kClients, count, rate, write, [](int, int) {});
  });
  std::cout << absl::StrFormat("  beside it RocksDB's synced writes of %d bytes at that rate: %s\n",
                               RequestBytes(), Quantiles(writes));
}

}  // namespace

void MeasureSubmit(int submits) {
  for (const int clients : {1, 100}) {
    const int calls = clients == 1 ? 10 * submits : std::min(submits, kJobsMax / clients);
    Submitters submitters(clients);
    const double begin = Now();
    const std::vector<double> seconds =
        TimeCalls(clients, calls, [&](int client, int i) { submitters.Submit(client, i); });
    const double rate = static_cast<double>(seconds.size()) / (Now() - begin);
    std::cout << absl::StrFormat(
        "submit to acknowledgement (synced), %3d clients: %s, %.0f per second, %d failed\n",
        clients, Quantiles(seconds), rate, submitters.failures());
    std::cout << absl::StrFormat(
        "  beside it RocksDB's synced write of %d bytes, %3d threads: %s\n", RequestBytes(),
        clients, Quantiles(TimeRocksDb(RequestBytes(), [&](const auto& write) {
          return TimeCalls(clients, calls, write);
        })));
  }
  MeasureSubmitsAtRate(/*rate=*/500, /*seconds=*/10);
}

}  // namespace megascale::bench

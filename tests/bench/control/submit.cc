#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "runtime/base/clock.h"
#include "tests/bench/control/benchmarks.h"
#include "tests/bench/control/measures.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

double Now() { return absl::ToDoubleSeconds(base::RealClock().Monotonic()); }

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
  return request;
}

// Fewer than the open jobs that a driver accepts.
constexpr int kJobsMax = 900;

// Times synced writes of the same size to RocksDB, without a driver.
std::vector<double> TimeRocksDb(int clients, int calls, size_t bytes) {
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
    seconds = TimeCalls(clients, calls, [&](int client, int i) {
      (void)db->Put(synced, absl::StrCat(client, "/", i), value);
    });
  }
  std::filesystem::remove_all(directory);
  return seconds;
}

}  // namespace

void MeasureSubmit(int submits) {
  const size_t bytes = RequestFor("bench-000-000").ByteSizeLong();
  for (const int clients : {1, 100}) {
    const int calls = clients == 1 ? 10 * submits : std::min(submits, kJobsMax / clients);
    e2e::Cluster cluster;
    cluster.StartDriver();
    client::ClientOptions options;
    options.address = client::ParseAddress(cluster.address()).value();
    std::vector<std::unique_ptr<client::JobClient>> connections;
    for (int i = 0; i < clients; ++i) {
      connections.push_back(client::JobClient::Create(options).value());
    }
    int failures = 0;
    const double begin = Now();
    const std::vector<double> seconds = TimeCalls(clients, calls, [&](int client, int i) {
      const auto job = connections[static_cast<size_t>(client)]->Submit(
          RequestFor(absl::StrCat("bench-", client, "-", i)), {.time = absl::Seconds(10)});
      if (!job.ok()) ++failures;
    });
    const double rate = static_cast<double>(seconds.size()) / (Now() - begin);
    std::cout << absl::StrFormat(
        "submit to acknowledgement (synced), %3d clients: %s, %.0f per second, %d failed\n",
        clients, Quantiles(seconds), rate, failures);
    std::cout << absl::StrFormat(
        "  beside it RocksDB's synced write of %d bytes, %3d threads: %s\n", bytes, clients,
        Quantiles(TimeRocksDb(clients, calls, bytes)));
  }
}

}  // namespace megascale::bench

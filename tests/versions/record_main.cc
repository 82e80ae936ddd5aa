// Records what a driver and two agents of one release say to each other while jobs run, a worker is
// killed, a job is cancelled and a machine is drained. Usage: record PROGRAM COMMIT OUT
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/client/job_client.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"
#include "tests/versions/conversation.h"
#include "tests/versions/relay.h"

namespace megascale::versions {
namespace {

using control::v1::Job;

constexpr int kPatienceSeconds = 120;

// One driver, one relay, two agents with a slot each.
class Story {
 public:
  Story(std::string program, const std::string& directory)
      : program_(std::move(program)), directory_(directory) {
    for (const char* folder : {"/driver", "/relay"}) {
      std::filesystem::create_directory(directory + folder);
      MEGASCALE_CHECK(::chmod((directory + folder).c_str(), 0700) == 0);
    }
    const std::string address = absl::StrCat("unix:", directory, "/driver/s");
    driver_ = e2e::Spawn({program_, "driver", "--listen", address, "--state-dir",
                          directory + "/state", "--machine-tests", "off"},
                         directory + "/driver.log");
    client::ClientOptions options;
    options.address = client::ParseAddress(address).value();
    options.retry.time = absl::Seconds(30);
    client_ = client::JobClient::Create(options).value();
    MEGASCALE_CHECK(client_->List().ok());
    relay_ = std::make_unique<Relay>(absl::StrCat("unix:", directory, "/relay/s"), address);
  }
  ~Story() {
    for (const pid_t pid : agents_) {
      if (pid > 0) e2e::KillAndReap(pid);
    }
    relay_.reset();
    e2e::KillAndReap(driver_);
  }

  void StartAgent(int index) {
    const std::string name = absl::StrCat("n", index);
    agents_[index] = e2e::Spawn(
        {program_, "agent", "--driver", absl::StrCat("unix:", directory_, "/relay/s"), "--slots",
         "1", "--node-id", name, "--run-dir", absl::StrCat(directory_, "/", name)},
        absl::StrCat(directory_, "/", name, ".log"));
  }
  void DrainAgent(int index) {
    ::kill(agents_[index], SIGTERM);
    MEGASCALE_CHECK(e2e::WaitForExit(agents_[index], kPatienceSeconds) == 0);
    agents_[index] = -1;
  }

  void Submit(const std::string& job_id, int64_t steps) {
    v1::Entry entry;
    control::v1::SubmitJobRequest& request = *entry.mutable_submit();
    request.set_job_id(job_id);
    job::v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("recorded");
    spec.mutable_model()->set_hidden_size(128);
    spec.mutable_model()->set_num_hidden_layers(2);
    spec.mutable_model()->set_num_attention_heads(2);
    spec.mutable_data()->add_files(directory_ + "/text");
    spec.mutable_train()->set_steps(steps);
    spec.mutable_train()->set_seq_length(64);
    spec.mutable_train()->set_global_batch_size(32);
    spec.mutable_train()->set_micro_batch_size(2);
    spec.mutable_parallel()->set_data_parallel_size(2);
    spec.mutable_checkpoint()->set_interval(25);
    relay_->Add(entry);
    MEGASCALE_CHECK(client_->Submit(request, {}).ok());
  }
  void Cancel(const std::string& job_id) {
    v1::Entry entry;
    entry.mutable_cancel()->set_job_id(job_id);
    entry.mutable_cancel()->set_checkpoint(true);
    relay_->Add(entry);
    MEGASCALE_CHECK(client_->Cancel(entry.cancel()).ok());
  }

  Job Get(const std::string& job_id) const { return client_->Get(job_id).value(); }
  void AwaitStep(const std::string& job_id, int64_t step) const {
    MEGASCALE_CHECK(
        e2e::WaitUntil([&] { return Get(job_id).last_step() >= step; }, kPatienceSeconds));
  }
  // Waits for a state and notes what a client then sees.
  void AwaitState(const std::string& job_id, control::v1::JobState state) {
    v1::Entry entry;
    MEGASCALE_CHECK(e2e::WaitUntil(
        [&] {
          *entry.mutable_seen() = Get(job_id);
          return entry.seen().state() == state;
        },
        kPatienceSeconds));
    std::printf("%s\n", JobText(entry.seen()).c_str());
    relay_->Add(std::move(entry));
  }

  void KillWorker(const std::string& job_id, int rank) const {
    const Job job = Get(job_id);
    const pid_t pid = job.ranks(rank).status().pid();
    MEGASCALE_CHECK(pid > 0);
    ::kill(pid, SIGKILL);
  }

  // Asks for all that agents keep of a job that runs.
  void Fetch(const std::string& job_id) {
    v1::Entry logs;
    logs.mutable_logs()->set_job_id(job_id);
    logs.mutable_logs()->set_rank(0);
    relay_->Add(logs);
    MEGASCALE_CHECK(client_->Logs(logs.logs(), {[](const auto&) {}, {}}).ok());
    v1::Entry spans;
    spans.mutable_spans()->set_job_id(job_id);
    spans.mutable_spans()->set_first_step(Get(job_id).last_step());
    relay_->Add(spans);
    MEGASCALE_CHECK(client_->Spans(spans.spans(), {[](const auto&) {}, {}}).ok());
    for (const auto kind :
         {telemetry::v1::EVIDENCE_KIND_EXCHANGES, telemetry::v1::EVIDENCE_KIND_STACKS}) {
      v1::Entry evidence;
      evidence.mutable_evidence()->set_job_id(job_id);
      evidence.mutable_evidence()->set_kind(kind);
      relay_->Add(evidence);
      MEGASCALE_CHECK(client_->Evidence(evidence.evidence(), {[](const auto&) {}, {}}).ok());
    }
  }

  v1::Conversation Take() const { return relay_->Take(); }

 private:
  const std::string program_;
  const std::string directory_;
  pid_t driver_ = -1;
  std::unique_ptr<client::JobClient> client_;
  std::unique_ptr<Relay> relay_;
  std::vector<pid_t> agents_ = {-1, -1};
};

void WriteText(const std::string& path) {
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "line ", i * i % 997, " of many\n");
  MEGASCALE_CHECK(base::WriteFileDurably(path, text).ok());
}

int Record(const std::string& program, const std::string& commit, const std::string& out) {
  char directory[] = "/tmp/ms-XXXXXX";  // as that of a driver in a test
  MEGASCALE_CHECK(::mkdtemp(directory) != nullptr);
  WriteText(absl::StrCat(directory, "/text"));
  Story story(program, directory);
  story.StartAgent(0);
  story.StartAgent(1);

  story.Submit("killed", 150);
  story.AwaitStep("killed", 15);
  story.Fetch("killed");
  story.KillWorker("killed", 1);
  story.AwaitState("killed", control::v1::JOB_STATE_SUCCEEDED);

  story.Submit("cancelled", 1000);
  story.AwaitStep("cancelled", 4);
  story.Cancel("cancelled");
  story.AwaitState("cancelled", control::v1::JOB_STATE_CANCELLED);

  story.Submit("moved", 100);
  story.AwaitStep("moved", 4);
  story.DrainAgent(1);
  story.AwaitState("moved", control::v1::JOB_STATE_RECOVERING);
  story.StartAgent(1);
  story.AwaitState("moved", control::v1::JOB_STATE_SUCCEEDED);

  v1::Conversation conversation = story.Take();
  const e2e::CommandResult version = e2e::Run({program, "version"});
  // The first line is "megascale 0.1.0 …".
  const std::vector<std::string> words = absl::StrSplit(version.out, absl::ByAnyChar(" \n"));
  MEGASCALE_CHECK(version.exit_code == 0 && words.size() > 1);
  conversation.set_program_version(words[1]);
  conversation.set_commit(commit);
  conversation.set_directory(directory);
  const absl::Status written = WriteConversation(conversation, out);
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", written.ToString().c_str());
    return 1;
  }
  std::printf("wrote %s: %d messages and calls of megascale %s of %s, %ju bytes\n", out.c_str(),
              conversation.entries_size(), words[1].c_str(), commit.c_str(),
              static_cast<uintmax_t>(std::filesystem::file_size(out)));
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace
}  // namespace megascale::versions

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: record PROGRAM COMMIT OUT\n");
    return 2;
  }
  return megascale::versions::Record(argv[1], argv[2], argv[3]);
}

#include "tests/versions/conversation.h"

#include <fcntl.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"

namespace megascale::versions {
namespace {

using agent::v1::ActualJob;
using agent::v1::ActualRank;
using agent::v1::DesiredJob;

std::string RankText(const ActualRank& rank) {
  std::string text = absl::StrCat(rank.status().rank(), " ", ActualRank::State_Name(rank.state()));
  if (rank.state() == ActualRank::STATE_FAILED) {
    // Signals that end workers are given by the test; other failures say what the worker said.
    absl::StrAppend(&text, " class ", rank.failure().failure_class(), " signal ",
                    rank.failure().signal());
  } else if (rank.state() != ActualRank::STATE_RUNNING) {
    absl::StrAppend(&text, " at ", rank.status().step());
  }
  return text;
}

template <typename Items, typename TextOf>
std::string Sorted(const Items& items, const TextOf& text_of) {
  std::set<std::string> texts;
  for (const auto& item : items) texts.insert(text_of(item));
  return absl::StrJoin(texts, ", ");
}

std::string IdText(const agent::v1::CheckpointId& id) {
  return absl::StrCat(id.attempt(), "/", id.step());
}

std::string ActualJobText(const ActualJob& job) {
  const auto shard_text = [](const auto& shard) {
    return absl::StrCat(shard.rank(), ":", shard.attempt(), "/", shard.step());
  };
  std::string text = absl::StrCat(
      "job ", job.job_id(), " attempt ", job.attempt(), " preflight ", job.preflight().state(), " ",
      job.preflight().message(), "\n  processes ", job.num_processes(), ", host ",
      job.host().pid() > 0, " restarts ", job.host().num_restarts(), " failed ",
      job.host().has_failure(), "\n  ranks ", Sorted(job.ranks(), RankText), "\n  snapshots ",
      Sorted(job.snapshots(), shard_text), "\n  shards ", Sorted(job.shards(), shard_text),
      "\n  manifests ",
      Sorted(job.manifests(), [](const auto& manifest) { return manifest.directory(); }),
      "\n  retained ", IdText(job.retained()), " storage error ", job.storage_error(),
      "\n  warnings ", absl::StrJoin(job.warnings(), "; "), "\n  steps ");
  for (const auto& step : job.steps())
    absl::StrAppend(&text, step.attempt(), "/", step.step(), " ");
  return text;
}

}  // namespace

absl::StatusOr<v1::Conversation> ReadConversation(const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  google::protobuf::io::FileInputStream packed(file.get());
  google::protobuf::io::GzipInputStream unpacked(&packed);
  v1::Conversation conversation;
  if (!conversation.ParseFromZeroCopyStream(&unpacked) || conversation.entries().empty()) {
    return absl::DataLossError(absl::StrCat(path, ": is no recorded conversation"));
  }
  return conversation;
}

absl::Status WriteConversation(const v1::Conversation& conversation, const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return absl::NotFoundError(absl::StrCat(path, ": cannot be written"));
  google::protobuf::io::FileOutputStream packed(file.get());
  google::protobuf::io::GzipOutputStream::Options options;
  options.compression_level = 9;
  google::protobuf::io::GzipOutputStream unpacked(&packed, options);
  const bool is_written =
      conversation.SerializeToZeroCopyStream(&unpacked) && unpacked.Close() && packed.Flush();
  if (!is_written) return absl::InternalError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

v1::Conversation InDirectory(const v1::Conversation& recorded, const std::string& directory) {
  // The length of a text comes before it.
  MEGASCALE_CHECK(directory.size() == recorded.directory().size());
  v1::Conversation moved;
  MEGASCALE_CHECK(moved.ParseFromString(
      absl::StrReplaceAll(recorded.SerializeAsString(), {{recorded.directory(), directory}})));
  return moved;
}

std::string DesiredText(const agent::v1::DesiredState& desired) {
  std::vector<std::string> jobs;
  for (const DesiredJob& job : desired.jobs()) {
    jobs.push_back(
        absl::StrCat(job.job_id(), "/", job.attempt(), " ", DesiredJob::Phase_Name(job.phase()),
                     job.stop_with_checkpoint() ? " with checkpoint" : "", " from source ",
                     job.restore().source(), " step ", job.restore().step(), " finalize ",
                     Sorted(job.finalize(), IdText), " committed ", Sorted(job.committed(), IdText),
                     job.delete_checkpoints() ? " deletes" : "", job.has_data() ? " data" : ""));
  }
  std::sort(jobs.begin(), jobs.end());
  return absl::StrCat(desired.draining() ? "draining " : "", absl::StrJoin(jobs, "; "));
}

void NotePlacements(const agent::v1::DesiredState& desired,
                    std::map<std::string, std::string>* placements) {
  for (const DesiredJob& job : desired.jobs()) {
    if (job.as_before()) continue;
    std::vector<std::string> ranks;
    for (const auto& placement : job.placements()) {
      for (int i = 0; i < std::max(1, placement.num_ranks()); ++i) {
        ranks.push_back(absl::StrCat(placement.rank() + i, " on ", placement.node_id()));
      }
    }
    (*placements)[absl::StrCat(job.job_id(), "/", job.attempt())] = absl::StrJoin(ranks, ", ");
  }
}

std::string ActualText(const agent::v1::ActualState& actual) {
  std::vector<std::string> jobs;
  for (const ActualJob& job : actual.jobs()) jobs.push_back(ActualJobText(job));
  std::sort(jobs.begin(), jobs.end());
  return absl::StrCat("knows ", actual.known_version(), ", applied ", actual.applied_version(),
                      actual.draining() ? ", drains" : "", "\n", absl::StrJoin(jobs, "\n"));
}

std::string JobText(const control::v1::Job& job) {
  const bool has_ended = job.has_ended_at();
  return absl::StrCat(job.job_id(), " ", control::v1::JobState_Name(job.state()), " attempt ",
                      job.attempt(), " restarts ", job.restarts(), " checkpoint ",
                      job.last_checkpoint().attempt(), "/", job.last_checkpoint().step(),
                      has_ended ? absl::StrCat(" steps ", job.last_step()) : "");
}

}  // namespace megascale::versions

#include "tests/sim/operators.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checkpoint_storage.h"

namespace megascale::sim {
namespace {

constexpr int kWorldSizeMax = 8;
constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kComeMax = absl::Seconds(8);
constexpr double kSuspicionChance = 0.08;  // of a question
constexpr double kListChance = 0.1;        // of a question
constexpr uint64_t kEvaluations = 0x6576616c;

google::protobuf::Duration Seconds(int64_t seconds) {
  google::protobuf::Duration duration;
  duration.set_seconds(seconds);
  return duration;
}

}  // namespace

Operators::Operators(World* world, DriverNode* driver, Options options)
    : world_(*world),
      driver_(*driver),
      options_(std::move(options)),
      suspicions_(Rng(world->rng).Next()) {
  // Apart, so that the other draws of a seed stay what they were.
  Rng evaluations(Rng(world->rng).Next() ^ kEvaluations);
  jobs_.resize(static_cast<size_t>(world_.rng.Between(1, options_.jobs_max)));
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = jobs_[i];
    job.submit.set_job_id(absl::StrCat("j", i));
    job.submit.set_secret_seed("seed");
    *job.submit.mutable_spec() = DrawSpec();
    DrawEvaluations(&evaluations, job.submit.mutable_spec());
    if (world_.rng.Chance(0.1)) {
      job.submit.set_from_checkpoint(CheckpointStorage::GivenPath());
      auto* train = job.submit.mutable_spec()->mutable_train();
      train->set_steps(train->steps() + CheckpointStorage::kGivenStep);
    }
    if (suspicions_.Chance(0.3)) {
      job.submit.mutable_spec()->mutable_fault()->set_on_suspect(
          megascale::job::v1::ON_SUSPECT_EVICT);
    }
    if (!world_.rng.Chance(0.25)) continue;
    job.cancel.emplace().set_job_id(job.submit.job_id());
    *job.cancel->mutable_grace() = Seconds(world_.rng.Between(1, 15));
    job.cancel->set_checkpoint(world_.rng.Chance(0.5));
  }
}

megascale::job::v1::JobSpec Operators::DrawSpec() {
  Rng& rng = world_.rng;
  const int slots = std::min(options_.num_slots, kWorldSizeMax);
  megascale::job::v1::JobSpec spec;
  spec.set_name(rng.Chance(0.02) ? "refused" : "job");
  const int tensor = options_.tensor_max > 1 && rng.Chance(0.3) ? 2 : 1;
  const int data = static_cast<int>(rng.Between(1, std::max(1, slots / tensor)));
  const bool pipelined = data % 2 == 0 && rng.Chance(0.4);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  spec.mutable_parallel()->set_data_parallel_size(pipelined ? data / 2 : data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(pipelined ? 2 : 1);
  if (rng.Chance(0.2)) spec.set_priority(static_cast<int32_t>(rng.Between(-2, 2)));
  spec.mutable_train()->set_steps(rng.Between(5, 100));
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  spec.mutable_checkpoint()->set_interval(rng.Between(2, 12));
  spec.mutable_checkpoint()->set_keep(static_cast<int>(rng.Between(1, 3)));
  auto* fault = spec.mutable_fault();
  *fault->mutable_heartbeat_interval() = Seconds(1);
  *fault->mutable_heartbeat_timeout() = Seconds(rng.Between(4, 6));
  *fault->mutable_progress_timeout() = Seconds(rng.Between(8, 12));
  *fault->mutable_start_timeout() = Seconds(rng.Between(16, 24));
  *fault->mutable_restart_backoff() = Seconds(rng.Between(0, 3));
  if (rng.Chance(0.3)) *fault->mutable_checkpoint_timeout() = Seconds(rng.Between(5, 30));
  fault->set_max_restarts_without_progress(static_cast<int>(rng.Between(1, 12)));
  return spec;
}

// Some jobs evaluate as they ask for it, and some as is the default.
void Operators::DrawEvaluations(Rng* rng, megascale::job::v1::JobSpec* spec) {
  if (!options_.draws_evaluations || rng->Chance(0.5)) {
    return spec->mutable_train()->set_eval_interval(0);
  }
  if (rng->Chance(0.7)) spec->mutable_train()->set_eval_interval(rng->Between(1, 20));
  spec->mutable_checkpoint()->set_keep_best(rng->Chance(0.5));
}

void Operators::Start(absl::Duration within) {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    ++num_open_;
    const absl::Duration come =
        world_.rng.Between(absl::ZeroDuration(), std::min(within / 2, kComeMax));
    world_.timeline.At(come, [this, i] { Submit(i); });
    if (!jobs_[i].cancel.has_value()) continue;
    ++num_open_;
    world_.timeline.At(world_.rng.Between(come, within), [this, i] { Cancel(i); });
  }
  Ask();
  if (!options_.spare_node.empty()) {
    ++num_open_;
    MakeSpare(std::make_shared<bool>());
  }
  const std::string& evicted_node = options_.evicted_node;
  if (evicted_node.empty()) return;
  num_open_ += 2;
  const absl::Duration evicted = world_.rng.Between(absl::Seconds(3), within);
  world_.timeline.At(
      evicted, [this, evicted_node] { SetEvicted(evicted_node, true, std::make_shared<bool>()); });
}

// Repeats an eviction until it is acknowledged; then, after a while, uncordons the node.
void Operators::SetEvicted(const std::string& node_id, bool evicted,
                           std::shared_ptr<bool> answered) {
  // The request may take effect without an answer, because the driver may end in between.
  world_.Break({node_id, Harm::kPeople}, evicted ? "is to be evicted" : "is to be uncordoned");
  driver_.SetEvicted(node_id, evicted, [this, node_id, evicted, answered](const auto& status) {
    if (*answered) return;
    // A node that the driver has never heard of cannot be evicted.
    if (!status.ok() && !absl::IsNotFound(status)) return;
    world_.Break({node_id, Harm::kPeople},
                 absl::StrCat(evicted ? "is evicted: " : "is uncordoned: ", status.ToString()));
    *answered = true;
    --num_open_;
    if (!evicted) return;
    world_.timeline.After(world_.rng.Between(absl::Seconds(1), absl::Seconds(20)), [this, node_id] {
      SetEvicted(node_id, false, std::make_shared<bool>());
    });
  });
  world_.timeline.After(kPatience, [this, node_id, evicted, answered] {
    if (!*answered) SetEvicted(node_id, evicted, answered);
  });
}

void Operators::MakeSpare(std::shared_ptr<bool> answered) {
  driver_.SetSpare(options_.spare_node, true, [this, answered](const absl::Status& status) {
    // A node that the driver has never heard of is no spare.
    if (*answered || !status.ok()) return;
    world_.Say(options_.spare_node, "is a spare");
    *answered = true;
    --num_open_;
  });
  world_.timeline.After(kPatience, [this, answered] {
    if (!*answered) MakeSpare(answered);
  });
}

void Operators::List(const std::string& token, const std::shared_ptr<Listing>& listing) {
  control::ListJobsRequest request;
  request.set_page_size(static_cast<int32_t>(suspicions_.Between(1, 3)));
  request.set_page_token(token);
  request.set_newest_first(listing->newest_first);
  driver_.List(request, [this, listing](const absl::StatusOr<control::ListJobsResponse>& page) {
    if (!page.ok()) return world_.Violate("ListsAreWhole", page.status().ToString());
    for (const control::Job& job : page->jobs()) listing->seen.push_back(job.job_id());
    if (page->next_page_token().empty()) return CheckListing(*listing);
    world_.timeline.After(suspicions_.Between(absl::ZeroDuration(), absl::Seconds(1)),
                          [this, listing, next = page->next_page_token()] { List(next, listing); });
  });
}

// Jobs that were submitted while the pages were read may be in them.
void Operators::CheckListing(const Listing& listing) {
  std::set<std::string> seen;
  for (const std::string& job_id : listing.seen) {
    if (!seen.insert(job_id).second) world_.Violate("ListsAreWhole", job_id + " is listed twice");
  }
  for (const std::string& job_id : listing.expected) {
    // It may be forgotten, or lost with a log that was replaced.
    const bool is_known = driver::FindJob(driver_.durable(), job_id) != nullptr;
    if (seen.count(job_id) > 0 || !is_known) continue;
    world_.Violate("ListsAreWhole",
                   absl::StrCat("a list of ", seen.size(), " jobs lacks ", job_id));
  }
}

void Operators::Submit(size_t index) {
  if (jobs_[index].submitted) return;
  const std::string& job_id = jobs_[index].submit.job_id();
  driver_.Submit(jobs_[index].submit, [this, index, job_id](const auto& answer) {
    if (!answer.ok()) {
      return world_.Violate(
          "AcknowledgedIsKept",
          absl::StrCat("submit of ", job_id, " again: ", answer.status().ToString()));
    }
    world_.Tell(&Observer::OnSubmitAcknowledged, job_id);
    world_.Tell(&Observer::OnStatus, *answer, driver_.durable());
    if (jobs_[index].submitted) return;
    world_.Say("operator", absl::StrCat("submit of ", job_id, " is acknowledged"));
    jobs_[index].submitted = true;
    --num_open_;
  });
  world_.timeline.After(kPatience, [this, index] { Submit(index); });
}

void Operators::Cancel(size_t index) {
  if (jobs_[index].cancelled) return;
  const std::string& job_id = jobs_[index].submit.job_id();
  if (jobs_[index].submitted) {
    driver_.Cancel(*jobs_[index].cancel, [this, index, job_id](const auto& answer) {
      if (absl::IsUnavailable(answer.status())) return;
      if (answer.ok()) {
        world_.Tell(&Observer::OnCancelAcknowledged, job_id);
        world_.Tell(&Observer::OnStatus, *answer, driver_.durable());
      } else if (!absl::IsFailedPrecondition(answer.status()) &&
                 !(world_.forgets_jobs && absl::IsNotFound(answer.status()))) {
        return world_.Violate("AcknowledgedIsKept",
                              absl::StrCat("cancel of ", job_id, ": ", answer.status().ToString()));
      }
      if (jobs_[index].cancelled) return;
      world_.Say("operator", absl::StrCat("cancel of ", job_id, ": ", answer.status().ToString()));
      jobs_[index].cancelled = true;
      --num_open_;
    });
  }
  world_.timeline.After(kPatience, [this, index] { Cancel(index); });
}

// After the storm, operators examine the machines that are at fault and use them again.
void Operators::Uncordon() {
  for (const auto& node : driver_.durable().nodes()) {
    const std::string& node_id = node.hello().node_id();
    const auto& jobs = driver_.durable().jobs();
    const bool refuses = std::any_of(jobs.begin(), jobs.end(), [&](const JobRecord& job) {
      return driver::RefusingNodesOf(driver_.durable(), job).count(node_id) > 0;
    });
    if (!node.has_quarantine() && !refuses) continue;
    world_.Break({node_id, Harm::kPeople}, "is to be uncordoned");
    driver_.SetEvicted(node_id, false, [](const auto& status) {});
  }
}

void Operators::Suspect(const std::string& job_id) {
  const JobRecord* record = driver::FindJob(driver_.durable(), job_id);
  if (record == nullptr || record->placements().empty()) return;
  const auto rank = suspicions_.Index(static_cast<size_t>(record->placements_size()));
  const std::string& node_id = record->placements(static_cast<int>(rank)).node_id();
  driver::v1::SuspectFound found;
  found.set_job_id(job_id);
  control::Suspicion* suspicion = found.mutable_suspicion();
  suspicion->set_kind(suspicions_.Chance(0.5) ? control::Suspicion::KIND_SLOW
                                              : control::Suspicion::KIND_STALL);
  suspicion->set_attempt(record->attempt());
  suspicion->set_rank(suspicions_.Chance(0.2) ? -1 : static_cast<int>(rank));
  if (suspicion->rank() >= 0) suspicion->set_node_id(node_id);
  suspicion->set_verdict(kSuspicion);
  world_.Break({node_id, Harm::kPeople}, absl::StrCat("is suspected by job ", job_id));
  driver_.Suspect(found);
}

void Operators::Ask() {
  world_.timeline.After(world_.rng.Between(absl::Milliseconds(300), absl::Seconds(3)), [this] {
    if (!world_.storm && driver_.up()) Uncordon();
    const Job& job = jobs_[world_.rng.Index(jobs_.size())];
    if (world_.storm && job.submitted && suspicions_.Chance(kSuspicionChance)) {
      Suspect(job.submit.job_id());
    }
    if (suspicions_.Chance(kListChance) && driver_.up()) {
      auto listing = std::make_shared<Listing>();
      listing->newest_first = suspicions_.Chance(0.5);
      for (const Job& known : jobs_) {
        if (known.submitted) listing->expected.push_back(known.submit.job_id());
      }
      List("", listing);
    }
    if (job.submitted) {
      driver_.GetJob(job.submit.job_id(), [this, job_id = job.submit.job_id()](const auto& answer) {
        if (answer.ok()) return world_.Tell(&Observer::OnStatus, *answer, driver_.durable());
        if (absl::IsUnavailable(answer.status())) return;
        if (world_.forgets_jobs && absl::IsNotFound(answer.status())) return;
        world_.Violate("AcknowledgedIsKept",
                       absl::StrCat("status of ", job_id, ": ", answer.status().ToString()));
      });
    }
    Ask();
  });
}

}  // namespace megascale::sim

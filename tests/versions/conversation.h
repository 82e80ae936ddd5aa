// Recorded conversations as files, and messages as text that can be compared: without what differs
// between two runs of the same story, such as times, versions and process ids.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "tests/versions/conversation.pb.h"

namespace megascale::versions {

// Packed by gzip. Errors: those of the file; DataLoss - it is no conversation.
absl::StatusOr<v1::Conversation> ReadConversation(const std::string& path);
absl::Status WriteConversation(const v1::Conversation& conversation, const std::string& path);

// Returns the conversation as it would have been in another folder. Requires: `directory` is as
// long as the recorded one.
v1::Conversation InDirectory(const v1::Conversation& recorded, const std::string& directory);

// What the driver decided: the phase of each job, its restore point, what is to be finalized and
// what is committed.
std::string DesiredText(const agent::v1::DesiredState& desired);
// Notes where the ranks of the jobs are, "0 on n0, 1 on n1", by "JOB/ATTEMPT".
void NotePlacements(const agent::v1::DesiredState& desired,
                    std::map<std::string, std::string>* placements);
// What an agent says of its machine: ranks and how they ended, snapshots, shards, manifests, steps.
std::string ActualText(const agent::v1::ActualState& actual);
// What became of a job: state, attempt, the newest checkpoint, and the last step of a job that
// ended.
std::string JobText(const control::v1::Job& job);

}  // namespace megascale::versions

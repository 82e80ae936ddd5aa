// The texts that say what stalled ranks did last (telemetry.v1.RankStatus.recent), in the reports
// of agents. An agent leaves them out of most of its reports, because they are long; its driver
// keeps the texts that it has received. Pure. Threads: any; only one at a time may use a report.
#pragma once

#include <string>
#include <vector>

#include "proto/agent.pb.h"

namespace megascale::protocol {

// Returns the texts of a report, none of them empty.
std::vector<std::string*> RecentTextsOf(megascale::agent::v1::ActualState* report);
bool HasRecentTexts(const megascale::agent::v1::ActualState& report);
void ClearRecentTexts(megascale::agent::v1::ActualState* report);

// Returns whether KeepRecentTexts would change `report`.
bool LacksRecentTexts(const megascale::agent::v1::ActualState& before,
                      const megascale::agent::v1::ActualState& report);

// Copies the texts of an earlier report to the ranks of `report` that have no text and have made no
// progress since then: such a rank runs in the same process, and its last progress is at least as
// long ago as in the earlier report.
void KeepRecentTexts(const megascale::agent::v1::ActualState& before,
                     megascale::agent::v1::ActualState* report);

}  // namespace megascale::protocol

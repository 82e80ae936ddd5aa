#include "runtime/plan/check/happens_before.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::plan {

HappensBefore::HappensBefore(const RankPlan& plan) {
  std::array<int, kNumStreamKinds> length = {};
  std::array<int, kNumStreamKinds> last;
  last.fill(-1);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const int stream = static_cast<int>(plan.instructions[i].stream);
    stream_.push_back(stream);
    position_.push_back(length[stream]++);
    previous_.push_back(std::exchange(last[stream], static_cast<int>(i)));
  }
  ended_before_.resize(plan.instructions.size(), Clock{});
}

absl::StatusOr<HappensBefore> HappensBefore::Create(const RankPlan& plan) {
  HappensBefore order(plan);
  RETURN_IF_ERROR(order.Order(plan));
  return order;
}

absl::Status HappensBefore::Order(const RankPlan& plan) {
  const int num_instructions = static_cast<int>(plan.instructions.size());
  std::vector<std::vector<int>> followers(num_instructions);
  std::vector<int> num_missing(num_instructions, 0);
  for (int i = 0; i < num_instructions; ++i) {
    for (const int producer : plan.instructions[i].depends_on) followers[producer].push_back(i);
    if (previous_[i] >= 0) followers[previous_[i]].push_back(i);
    num_missing[i] =
        static_cast<int>(plan.instructions[i].depends_on.size()) + (previous_[i] >= 0 ? 1 : 0);
  }
  std::vector<int> ready;
  for (int i = 0; i < num_instructions; ++i) {
    if (num_missing[i] == 0) ready.push_back(i);
  }
  std::vector<bool> ordered(num_instructions, false);
  int num_ordered = 0;
  while (!ready.empty()) {
    const int i = ready.back();
    ready.pop_back();
    ordered[i] = true;
    ++num_ordered;
    for (const int follower : followers[i]) {
      Clock& clock = ended_before_[follower];
      for (int stream = 0; stream < kNumStreamKinds; ++stream) {
        clock[stream] = std::max(clock[stream], ended_before_[i][stream]);
      }
      clock[stream_[i]] = std::max(clock[stream_[i]], position_[i] + 1);
      if (--num_missing[follower] == 0) ready.push_back(follower);
    }
  }
  return num_ordered == num_instructions ? absl::OkStatus() : Cycle(plan, ordered);
}

absl::Status HappensBefore::Cycle(const RankPlan& plan, const std::vector<bool>& ordered) const {
  // Each remaining instruction waits for another remaining one, so following these waits must
  // return to an instruction seen before.
  int at = static_cast<int>(std::find(ordered.begin(), ordered.end(), false) - ordered.begin());
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    const std::vector<int>& producers = plan.instructions[at].depends_on;
    const auto blocking = std::find_if(producers.begin(), producers.end(),
                                       [&](int producer) { return !ordered[producer]; });
    at = blocking != producers.end() ? *blocking : previous_[at];
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  path.push_back(at);
  std::string text;
  for (const int i : path) {
    absl::StrAppend(&text, text.empty() ? "" : " waits for ", plan.instructions[i].id.ToString());
  }
  return absl::InvalidArgumentError(absl::StrCat("rank ", plan.rank, ": a cycle: ", text));
}

}  // namespace megascale::plan

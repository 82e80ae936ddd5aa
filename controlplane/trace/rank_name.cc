#include "controlplane/trace/rank_name.h"

#include "absl/strings/str_cat.h"

namespace megascale::trace {
namespace {

// "node b, stage 1, data 0"
std::string Details(const RankName& name) {
  if (name.node.empty()) return name.place;
  return absl::StrCat("node ", name.node, name.place.empty() ? "" : ", ", name.place);
}

}  // namespace

std::string RankName::Text() const {
  const std::string details = Details(*this);
  return details.empty() ? rank : absl::StrCat(rank, ": ", details);
}

std::string RankName::InSentence() const {
  const std::string details = Details(*this);
  return details.empty() ? rank : absl::StrCat(rank, " (", details, ")");
}

std::string RankName::Machine() const {
  return node.empty() ? absl::StrCat("the machine of ", InSentence()) : absl::StrCat("node ", node);
}

}  // namespace megascale::trace

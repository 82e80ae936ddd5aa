#include "controlplane/http/request_guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace megascale::http {
namespace {

constexpr char kBearer[] = "Bearer ";

// Browsers leave out the port of the scheme.
int DefaultPort(bool is_tls) { return is_tls ? 443 : 80; }

}  // namespace

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

RequestGuard::RequestGuard(const std::vector<std::string>& hosts, int port, bool is_tls,
                           std::string token)
    : scheme_(is_tls ? "https://" : "http://"),
      cookie_name_(absl::StrCat("megascale_", port)),
      token_(std::move(token)) {
  for (const std::string& host : hosts) {
    // An IPv6 address stands in brackets.
    const bool bare_v6 = absl::StrContains(host, ':') && host.front() != '[';
    const std::string name = absl::AsciiStrToLower(bare_v6 ? absl::StrCat("[", host, "]") : host);
    authorities_.push_back(absl::StrCat(name, ":", port));
    if (port == DefaultPort(is_tls)) authorities_.push_back(name);
  }
}

bool RequestGuard::HasToken(const RequestHead& head) const {
  if (absl::StartsWithIgnoreCase(head.authorization, kBearer) &&
      SameSecret(head.authorization.substr(sizeof(kBearer) - 1), token_)) {
    return true;
  }
  bool found = false;
  for (const absl::string_view pair : absl::StrSplit(head.cookie, ';')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(pair), absl::MaxSplits('=', 1));
    if (parts.first == cookie_name_ && SameSecret(parts.second, token_)) found = true;
  }
  return found;
}

Verdict RequestGuard::Judge(const RequestHead& head) const {
  if (head.method != "GET" && head.method != "HEAD") return Verdict::kBadMethod;
  const auto is_own = [&](absl::string_view authority) {
    return std::find(authorities_.begin(), authorities_.end(), absl::AsciiStrToLower(authority)) !=
           authorities_.end();
  };
  if (!is_own(head.host)) return Verdict::kWrongHost;
  if (!head.origin.empty()) {
    absl::string_view origin = head.origin;
    if (!absl::ConsumePrefix(&origin, scheme_) || !is_own(origin)) return Verdict::kWrongOrigin;
  }
  if (!head.token.empty()) {
    return SameSecret(head.token, token_) ? Verdict::kSetCookie : Verdict::kMissingToken;
  }
  return HasToken(head) ? Verdict::kServe : Verdict::kMissingToken;
}

std::string RequestGuard::SetCookie() const {
  return absl::StrCat(cookie_name_, "=", token_, "; Path=/; HttpOnly; SameSite=Strict",
                      scheme_ == "https://" ? "; Secure" : "");
}

}  // namespace megascale::http
